"""One Op without a model that answers with a text of as many characters as it is asked for (`number`)."""

import os

from pipeline import Op, WebService


class LongOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        self.number = int(inputs["number"])
        return {}, True, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {"text": "x" * self.number}, None, ""


class LongService(WebService):
    def get_pipeline_response(self, read_op):
        return LongOp(name="long", input_ops=[read_op])


if __name__ == "__main__":
    service = LongService(name="test")
    service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
    service.run_service()
