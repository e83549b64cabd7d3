"""A service with a large answer, 1 x 128 x 768 floats over key/value, which bench/large_answer.py loads."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline import Op, WebService
from pipeline.api.op import RequestOp
from pipeline.script import prepare_from_arguments

TOKENS = 128


class HiddenStatesOp(Op):
    def preprocess(self, input_dicts: dict[str, Any], data_id: int = 0, log_id: int = 0) -> Any:
        (inputs,) = input_dicts.values()
        token = int(inputs["token"])
        return {"input_ids": np.full((1, TOKENS), token, "int64")}


class HiddenStatesService(WebService):
    def get_pipeline_response(self, read_op: RequestOp) -> Op:
        return HiddenStatesOp(name="hidden", input_ops=[read_op])


if __name__ == "__main__":
    service = HiddenStatesService(name="hidden")
    prepare_from_arguments(service, Path("config.yml"))
    service.run_service()
