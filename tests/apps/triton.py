"""Stand-ins for the models that Triton's answers were recorded with: MODEL names the one that is served."""

import json
import os
import time
from pathlib import Path

import numpy as np

from pipeline import Op, ServingError, WebService

NAME = os.environ["MODEL"]
KIND = NAME.removeprefix("identity_").upper()
DATATYPES = {"STRING": "BYTES", "DYN": "FP32", "GOOD2": "FP32"}
ERRORS = {
    0: ("user said zero", 500, "INTERNAL"),
    1: ("bad arg", 400, "INVALID_ARGUMENT"),
    2: ("not found", 404, "NOT_FOUND"),
    3: ("unavailable", 503, "UNAVAILABLE"),
    4: ("unsupported", 501, "UNIMPLEMENTED"),
    5: ("already exists", 400, "ALREADY_EXISTS"),
    6: ("cancelled", 499, "CANCELLED"),
    11: ("internal", 500, "INTERNAL"),
    12: ("unknown", 400, "UNKNOWN"),
}


class TritonOp(Op):
    max_batch_size = 8

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        (inputs,) = input_dicts.values()
        return self.answer(inputs)

    def hold(self, tensor):
        """Until there is the file that WAIT_FOR names, for a tensor of 77."""
        if "WAIT_FOR" in os.environ and tensor[0, 0] == 77:
            while not Path(os.environ["WAIT_FOR"]).exists():
                time.sleep(0.01)


class SimpleOp(TritonOp):
    input_tensors = {"INPUT0": "INT32 [-1, 16]", "INPUT1": "INT32 [-1, 16]"}
    output_tensors = {"OUTPUT0": "INT32 [-1, 16]", "OUTPUT1": "INT32 [-1, 16]"}

    def answer(self, inputs):
        a, b = inputs["INPUT0"], inputs["INPUT1"]
        self.hold(a)
        return {"OUTPUT0": a + b, "OUTPUT1": a - b}


class IdentityOp(TritonOp):
    input_tensors = {"INPUT0": f"{DATATYPES.get(KIND, KIND)} [-1, -1]"}
    output_tensors = {"OUTPUT0": f"{DATATYPES.get(KIND, KIND)} [-1, -1]"}

    def answer(self, inputs):
        return {"OUTPUT0": inputs["INPUT0"]}


class QueueOp(IdentityOp):
    input_tensors = {"INPUT0": "FP32 [-1, 4]"}
    output_tensors = {"OUTPUT0": "FP32 [-1, 4]"}
    max_batch_size = 1

    def answer(self, inputs):
        self.hold(inputs["INPUT0"])
        return super().answer(inputs)


class ClassifyOp(IdentityOp):
    input_tensors = {"INPUT0": "FP32 [-1, 5]"}
    output_tensors = {"OUTPUT0": "FP32 [-1, 5]"}
    output_labels = {"OUTPUT0": ["cat", "dog", "bird", "fish"]}


class ErrEachOp(TritonOp):
    input_tensors = {"INPUT0": "FP32 [-1, 1]"}
    output_tensors = {"OUTPUT0": "FP32 [-1, 1]"}

    def answer(self, inputs):
        number = int(inputs["INPUT0"].ravel()[0])
        if number in ERRORS:
            error = ServingError(ERRORS[number][0])
            error.http_status, error.grpc_code = ERRORS[number][1:]
            raise error
        if number == 7:
            raise ValueError("python exception text")
        if number == 8:
            return {"WRONG": inputs["INPUT0"]}
        if number == 9:
            return {"OUTPUT0": np.zeros((3, 3), np.int64)}
        if number == 99:
            raise TypeError("incompatible constructor arguments")
        return {"OUTPUT0": inputs["INPUT0"]}


class GenOp(TritonOp):
    max_batch_size = 0
    input_tensors = {"PROMPT": "BYTES [1]"}
    output_tensors = {"TEXT": "BYTES [1]"}

    def answer(self, inputs):
        return {"TEXT": inputs["PROMPT"] + b" 0"}


class ParamsOp(TritonOp):
    max_batch_size = 0
    input_tensors = {"INPUT0": "BYTES [1]"}
    output_tensors = {"OUTPUT0": "BYTES [1]"}

    def answer(self, inputs):
        options = self.request_options
        parameters = json.dumps(dict(options.parameters), sort_keys=True)
        return {"OUTPUT0": [f"{options.id}|{options.timeout_us}|{parameters}"]}


class PixelsOp(TritonOp):
    input_tensors = {
        "FIRST": "FP32 [-1, 3, -1, -1]",
        "LAST": "UINT8 [-1, 28, 28, 1]",
        "BOTH": "FP32 [-1, 3, 8, 3]",
        "TEXTS": "BYTES [-1, 3, 8, 8]",
    }
    output_tensors = {"OUTPUT0": "FP32 [-1, 1000]"}


class VersionsOp(TritonOp):
    max_batch_size = 0
    input_tensors = {"INPUT0": "INT32 [1]"}
    output_tensors = {"OUTPUT0": "INT32 [1]"}


OPS = {
    "simple": SimpleOp,
    "classify": ClassifyOp,
    "err_each": ErrEachOp,
    "gen": GenOp,
    "identity_queue": QueueOp,
    "params": ParamsOp,
    "pixels": PixelsOp,
    "versions": VersionsOp,
}


class TritonService(WebService):
    def get_pipeline_response(self, read_op):
        return OPS.get(NAME, IdentityOp)(name="model", input_ops=[read_op])


service = TritonService(name=NAME)
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()
