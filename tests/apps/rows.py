"""One Op without a model: `sum` and `words` of each row, in rows of a declared shape, or of a whole request.

DECLARED names what it declares. An answer tells how many rows shared its run.
"""

import os

import numpy as np

from pipeline import Op, WebService


class RowsOp(Op):
    input_tensors = {"numbers": "INT32 [-1, 2]", "words": "BYTES [-1, -1]"}
    output_tensors = {"sum": "INT64 [-1]", "words": "BYTES [-1, -1]", "rows": "INT64 [-1]"}
    example = {"words": ["国足", "取胜"]}
    max_batch_size = 4

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        (inputs,) = input_dicts.values()
        self.words = inputs["words"]
        return {"numbers": inputs["numbers"]}

    def process(self, feed_batch, typical_logid=0):
        numbers = feed_batch[0]["numbers"]
        return {"sum": numbers.sum(axis=1), "rows": np.full(len(numbers), len(numbers))}

    def postprocess(self, input_dicts, fetch_dict, data_id=0, log_id=0):
        return {**fetch_dict, "words": self.words}


class WholeOp(Op):
    input_tensors = {"ratio": "FP32 [2]", "exact": "BOOL [1]"}
    output_tensors = {"ratio": "FP32 [2]", "exact": "BOOL [1]"}

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        (inputs,) = input_dicts.values()
        return {**inputs, "ratio": inputs["ratio"] / np.float32(0)}


class OpenOp(Op):
    example_key_values = {"text": "国足客场两球取胜"}

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        (inputs,) = input_dicts.values()
        if isinstance(inputs.get("text"), str):
            return {"text": inputs["text"], "kind": "text"}
        return {"numbers": inputs["numbers"] * 2, "raw": b"\xff"}


class WideOp(Op):
    input_tensors = {"image": "FP32 [-1, 100]", "threshold": "FP32 [-1]"}
    output_tensors = {"threshold": "FP32 [-1]"}

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        (inputs,) = input_dicts.values()
        return {"threshold": inputs["threshold"]}


class UnlimitedOp(WideOp):
    input_tensors = {"threshold": "FP32 [-1]"}
    takes_rows = True


OPS = {"unlimited": UnlimitedOp, "rows": RowsOp, "whole": WholeOp, "open": OpenOp, "wide": WideOp}


class RowsService(WebService):
    def get_pipeline_response(self, read_op):
        return OPS[os.environ["DECLARED"]](name="op", input_ops=[read_op])


service = RowsService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()
