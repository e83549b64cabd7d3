"""Two Ops without a model: the first hands on all it was given, the second says how much that was."""

import os

from pipeline import Op, WebService


class HandOnOp(Op):
    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {"given": fetch_dict}


class CountOp(Op):
    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {"count": str(len(fetch_dict["given"]))}


class RelayService(WebService):
    def get_pipeline_response(self, read_op):
        return CountOp(name="count", input_ops=[HandOnOp(name="hand_on", input_ops=[read_op])])


if __name__ == "__main__":
    service = RelayService(name="test")
    service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
    service.run_service()
