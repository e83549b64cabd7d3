"""An Op of sequences that adds numbers: `total` of its sequence so far. TOTALS=batch has batch-wise hooks."""

import os
from pathlib import Path

import numpy as np

from pipeline import Op, WebService


class TotalOp(Op):
    sequence = True
    input_tensors = {"number": "FP32 [1]"}
    output_tensors = {"total": "FP32 [1]"}

    def start(self):
        self.sequence = {"total": 0.0, "numbers": [], "counts": np.zeros(2000, np.int64)}

    def end(self):
        with Path(os.environ["ENDED"]).open("a") as file:
            file.write(f"{self.request_options.correlation_id} {self.sequence['total']:g}\n")

    def preprocess(self, input_dicts, data_id, log_id):
        (request,) = input_dicts.values()
        self.number = read_number(request)
        if self.number < 0:
            raise ValueError("a negative number")
        self.sequence["total"] += self.number
        self.sequence["counts"] += 1
        if self.number == 99:
            self.sequence["thing"] = object()
        return {"number": np.array([[self.number]])}

    def process(self, feed_batch, typical_logid=0):
        assert self.sequence is None
        return {"number": feed_batch[0]["number"]}

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        self.sequence["numbers"].append(self.number)
        assert len(self.sequence["numbers"]) == self.sequence["counts"][-1]
        return {"total": np.array([self.sequence["total"]], np.float32)}


class BatchOp(Op):
    sequence = True
    input_tensors = TotalOp.input_tensors
    output_tensors = TotalOp.output_tensors

    def start(self):
        self.sequence["total"] = 0.0

    def preprocess_batch(self, requests):
        for request in requests:
            request.sequence["total"] += read_number(request.inputs)
        return [{"number": np.zeros((1, 1))} for _ in requests]

    def postprocess_batch(self, requests, fetches):
        return [{"total": np.array([request.sequence["total"]], np.float32)} for request in requests]


def read_number(request):
    number = request["number"]
    return float(number if isinstance(number, str) else number[0])


class Totals(WebService):
    def get_pipeline_response(self, read_op):
        kind = BatchOp if os.environ.get("TOTALS") == "batch" else TotalOp
        return kind(name="total", input_ops=[read_op])


service = Totals(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()
