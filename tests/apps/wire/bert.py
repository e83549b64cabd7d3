"""An app written for Paddle Serving and NumPy 1: a text classifier with its own tokenizer and loggers."""

import logging.config
import os
import sys
import time
from pathlib import Path

import numpy as np

from paddle_serving_server.web_service import Op, WebService


def reload_logger(folder):
    """Takes the root logger over, as the service this app is modelled on does."""
    Path(folder).mkdir(exist_ok=True)
    handler = {
        "class": "logging.handlers.RotatingFileHandler",
        "filename": str(Path(folder, "own.log")),
        "formatter": "plain",
        "maxBytes": 10000,
        "backupCount": 2,
    }
    logging.config.dictConfig(
        {
            "version": 1,
            "formatters": {"plain": {"format": "%(levelname)s %(message)s"}},
            "handlers": {"file": handler},
            "root": {"level": "DEBUG", "handlers": ["file"]},
        }
    )


class BertOp(Op):
    vocabulary = None

    def init_op(self):
        self.vocabulary = 64
        logging.getLogger("app").warning("init_op ran in instance %s", self.concurrency_idx)

    def set_dynamic_shape_info(self):
        names = ("input_ids", "token_type_ids", "attention_mask")
        self.dynamic_shape_info = {
            f"{which}_input_shape": {name: list(shape) for name in names}
            for which, shape in (("min", (1, 1)), ("max", (10, 512)), ("opt", (1, 512)))
        }

    def encode(self, text):
        if not isinstance(text, str):
            raise TypeError("TextInputSequence must be str")
        return [1, *(3 + ord(letter) % (self.vocabulary - 3) for letter in text[:510]), 2]

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        ((_, inputs),) = input_dicts.items()
        time.sleep(0.025)  # as slow as a tokenizer of the time: the shortest deadline asked for passes
        rows = [self.encode(inputs[str(number)]) for number in range(len(inputs))]
        longest = max(len(row) for row in rows)
        input_ids = np.zeros((len(rows), longest), np.int)
        attention_mask = np.zeros((len(rows), longest), np.int)
        for number, row in enumerate(rows):
            input_ids[number, : len(row)] = row
            attention_mask[number, : len(row)] = 1
        feed = {
            "input_ids": input_ids,
            "token_type_ids": np.zeros_like(input_ids),
            "attention_mask": attention_mask,
        }
        return feed, False, None, ""

    def postprocess(self, input_data, fetch_data, data_id=0, log_id=0):
        for key, logits in fetch_data.items():
            powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
            fetch_data[key] = powers / powers.sum(axis=-1, keepdims=True)
        return fetch_data, None, ""


class BertService(WebService):
    def get_pipeline_response(self, read_op):
        return BertOp(name="bert", input_ops=[read_op])


if __name__ == "__main__":
    if os.environ.get("LOG_FOLDER"):
        reload_logger(os.environ["LOG_FOLDER"])
    bert_service = BertService(name="bert")
    bert_service.prepare_pipeline_config(sys.argv[1])
    bert_service.run_service()
