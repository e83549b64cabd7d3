"""Sentences come as the printed array of their bytes, as text classifiers of Paddle's examples take them."""

import logging

import numpy as np
from numpy import array  # noqa: F401  what eval finds

from paddle_serving_server.web_service import Op, WebService

_LOGGER = logging.getLogger()


class Op(Op):
    def init_op(self):
        self.fetch_names = ["logits"]

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, input_dict),) = input_dicts.items()
        data = input_dict["sentence"]
        if isinstance(data, str) and "array(" in data:
            data = eval(data)  # noqa: S307
        else:
            _LOGGER.error("input value %s is not supported.", data)
        texts = [i.decode("utf-8") for i in data]
        width = max(map(len, texts))
        input_ids = [[ord(c) % 64 for c in text] + [0] * (width - len(text)) for text in texts]
        mask = [[1] * len(text) + [0] * (width - len(text)) for text in texts]
        feed = {"input_ids": np.array(input_ids, dtype="int64"), "attention_mask": np.array(mask)}
        feed["token_type_ids"] = np.zeros_like(feed["input_ids"])
        return feed, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        results = np.array(fetch_dict[self.fetch_names[0]])
        labels = [",".join(str(i) for i in np.argsort(-result)) for result in results]
        return {"label": labels, "confidence": results.max(axis=-1)}, None, ""


class Service(WebService):
    def get_pipeline_response(self, read_op):
        return Op(name="seq_cls", input_ops=[read_op])


if __name__ == "__main__":
    service = Service(name="seq_cls")
    service.prepare_pipeline_config("config.yml")
    service.run_service()
