"""A service whose only Op returns its inputs, over every endpoint, to measure the cost of the endpoints."""

from pathlib import Path

from pipeline import Op, WebService
from pipeline.script import prepare_from_arguments


class IdentityOp(Op):
    input_tensors = {"INPUT0": "FP32 [-1, -1]"}
    output_tensors = {"OUTPUT0": "FP32 [-1, -1]"}

    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        return {"OUTPUT0": inputs["INPUT0"]}  # of a key/value client a text


class IdentityService(WebService):
    def get_pipeline_response(self, read_op):
        return IdentityOp(name="op", input_ops=[read_op])


if __name__ == "__main__":
    service = IdentityService(name="identity")
    prepare_from_arguments(service, Path(__file__).with_name("config.yml"))
    service.run_service()
