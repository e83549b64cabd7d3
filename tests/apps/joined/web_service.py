"""An app written for Paddle Serving: two models on the same ids, and an Op that averages them."""

import sys

import numpy as np

from paddle_serving_server.web_service import Op, WebService


class WordsOp(Op):
    """No model: a text of numbers to ids, of any length. Its attributes have names of its own choice."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.options = {"separator": None}

    def init_op(self):
        self.predictor = self.model = "none"

    def preprocess(self, input_dicts, data_id, log_id):
        (_, input_dict), = input_dicts.items()  # fmt: skip
        if not input_dict.get("words"):
            return {}, False, 50, "no words"
        return (
            {"ids": np.array([[int(word) for word in input_dict["words"].split(self.options["separator"])]])},
            False,
            None,
            "",
        )


class NewOp(Op):
    def init_op(self):
        self.predictor = self.model = "classifier"

    def preprocess(self, input_dicts, data_id, log_id):
        ids = input_dicts["words"]["ids"]
        return {
            "input_ids": ids,
            "token_type_ids": np.zeros_like(ids),
            "attention_mask": np.ones_like(ids),
        }, False, None, ""  # fmt: skip


class OldOp(Op):
    """Calls its model itself, as the documents of 0.9 show it."""

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        ids = input_dicts["words"]["ids"]
        return {"input_ids": ids, "attention_mask": np.ones(ids.shape)}, False, None, ""

    def process(self, feed_batch, typical_logid=0):
        call_result = self.client.predict(
            feed=feed_batch[0], fetch=self._fetch_names, batch=True, log_id=typical_logid
        )
        return call_result, 0, ""


class AverageOp(Op):
    def preprocess(self, input_data, data_id, log_id):
        total = sum(data["logits"] for data in input_data.values())
        return {"logits": total / len(input_data), "from": sorted(input_data)}, False, None, ""

    def postprocess(self, input_data, fetch_data, data_id, log_id):
        logits = fetch_data["logits"]
        return {
            "label": str(logits.argmax()),
            "logits": " ".join(str(logit) for logit in logits[0]),
            "from": " ".join(fetch_data["from"]),
        }, None, ""  # fmt: skip


class JoinedService(WebService):
    def get_pipeline_response(self, read_op):
        words = WordsOp(name="words", input_ops=[read_op])
        new = NewOp(name="new", input_ops=[words])
        old = OldOp(name="old", input_ops=[words])
        return AverageOp(name="average", input_ops=[new, old])


service = JoinedService(name="joined")
service.prepare_pipeline_config(sys.argv[1] if len(sys.argv) > 1 else "config.yml")
service.run_service()
