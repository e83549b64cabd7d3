"""Ops that answer with what the client said of its request: hooks of one request, batch-wise ones, both."""

import json
import os

from pipeline import Op, WebService


def told(request):
    return [request.id, request.priority, request.timeout_us, dict(request.parameters)]


class TellingOp(Op):
    input_tensors = {"text": "BYTES [-1]"}
    output_tensors = {"told": "BYTES [-1]"}


class EachOp(TellingOp):
    def preprocess(self, input_dicts, data_id=0, log_id=0):
        return {"before": told(self.request_options)}

    def postprocess(self, input_dicts, fetch_dict, data_id=0, log_id=0):
        both = {**fetch_dict, "after": told(self.request_options)}
        return {"told": [json.dumps(both, sort_keys=True)]}


class BatchOp(TellingOp):
    def preprocess_batch(self, requests):
        return [{"before": told(request)} for request in requests]

    def postprocess_batch(self, requests, fetches):
        pairs = zip(requests, fetches, strict=True)
        both = [{**fetch, "after": told(request)} for request, fetch in pairs]
        return [{"told": [json.dumps(one, sort_keys=True)]} for one in both]


class MixedOp(TellingOp):
    preprocess_batch = BatchOp.preprocess_batch
    postprocess = EachOp.postprocess


OPS = {"each": EachOp, "batch": BatchOp, "mixed": MixedOp}


class TellingService(WebService):
    def get_pipeline_response(self, read_op):
        return OPS[os.environ["HOOKS"]](name="tell", input_ops=[read_op])


service = TellingService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()
