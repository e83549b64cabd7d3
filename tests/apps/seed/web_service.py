"""An app written for Paddle Serving: a BERT classifier with its own tokenizer, shapes and log file."""

import importlib
import logging
import logging.config

import numpy as np
from tokenizers import BertWordPieceTokenizer

from paddle_serving_server.web_service import Op, WebService

# Importing Paddle Serving took the root logger over: such apps began anew and then said what they wanted.
importlib.reload(logging)
logging.basicConfig(filename="bert.log", level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s")
_LOGGER = logging.getLogger("bert")

MAX_LENGTH = 128
PAD = np.int(0)


class BertOp(Op):
    def init_op(self):
        self.tokenizer = BertWordPieceTokenizer("vocab.txt", lowercase=True)
        self.tokenizer.enable_truncation(MAX_LENGTH)
        self.tokenizer.enable_padding(pad_id=PAD)
        _LOGGER.info("tokenizer loaded by instance %s", self.concurrency_idx)

    def set_dynamic_shape_info(self):
        names = ["input_ids", "token_type_ids", "attention_mask"]
        self.dynamic_shape_info = {
            "min_input_shape": {name: [1, 1] for name in names},
            "max_input_shape": {name: [10, MAX_LENGTH] for name in names},
            "opt_input_shape": {name: [1, 32] for name in names},
        }

    def preprocess(self, input_dicts, data_id, log_id):
        (_, input_dict), = input_dicts.items()  # fmt: skip
        self.texts = [input_dict[str(i)] for i in range(len(input_dict))]
        encoded = self.tokenizer.encode_batch(self.texts)
        feed = {
            "input_ids": np.array([one.ids for one in encoded], dtype=np.int),
            "token_type_ids": np.array([one.type_ids for one in encoded], dtype="int64"),
            "attention_mask": np.array([one.attention_mask for one in encoded], dtype="int64"),
        }
        return feed, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        if len(self.texts) != len(fetch_dict["logits"]):
            return {}, 51, "texts and rows differ"
        fetch_dict["length"] = np.array([len(text) for text in self.texts])
        return fetch_dict, None, ""


class BertService(WebService):
    def get_pipeline_response(self, read_op):
        return BertOp(name="bert", input_ops=[read_op])


bert_service = BertService(name="bert")
bert_service.prepare_pipeline_config("config.yml")
bert_service.run_service()
