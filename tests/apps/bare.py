"""Ops that run no model and say nothing of one: one as it is made, one with a hook of its own."""

import os

from pipeline import Op, WebService


class HookedOp(Op):
    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {key: str(value) for key, value in fetch_dict.items()}


class BareService(WebService):
    def get_pipeline_response(self, read_op):
        return HookedOp(name="hooked", input_ops=[Op(name="bare", input_ops=[read_op])])


service = BareService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()
