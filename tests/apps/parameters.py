"""Ops that answer with the request's parameters: by per-request or by batch-wise hooks."""

import json
import os

from pipeline import Op, WebService


class TellingOp(Op):
    input_tensors = {"text": "BYTES [-1]"}
    output_tensors = {"told": "BYTES [-1]"}


class EachOp(TellingOp):
    def preprocess(self, input_dicts, data_id=0, log_id=0):
        return {"before": dict(self.request_parameters)}

    def postprocess(self, input_dicts, fetch_dict, data_id=0, log_id=0):
        told = {**fetch_dict, "after": dict(self.request_parameters)}
        return {"told": [json.dumps(told, sort_keys=True)]}


class BatchOp(TellingOp):
    def preprocess_batch(self, requests):
        return [{"before": dict(request.parameters)} for request in requests]

    def postprocess_batch(self, requests, fetches):
        pairs = zip(requests, fetches, strict=True)
        told = [{**fetch, "after": dict(request.parameters)} for request, fetch in pairs]
        return [{"told": [json.dumps(one, sort_keys=True)]} for one in told]


class TellingService(WebService):
    def get_pipeline_response(self, read_op):
        op = EachOp if os.environ["HOOKS"] == "each" else BatchOp
        return op(name="tell", input_ops=[read_op])


service = TellingService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()
