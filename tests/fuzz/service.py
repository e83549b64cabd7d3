"""A service that answers whatever it can be asked: what tests.fuzz sends broken requests to."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pipeline import Op, WebService
from pipeline.api.op import RequestOp
from pipeline.script import prepare_from_arguments


class CountOp(Op):
    def preprocess(self, input_dicts: dict[str, Any], data_id: int = 0, log_id: int = 0) -> Any:
        (inputs,) = input_dicts.values()
        return {"count": str(len(inputs))}


class CountService(WebService):
    def get_pipeline_response(self, read_op: RequestOp) -> Op:
        return CountOp(name="count", input_ops=[read_op])


if __name__ == "__main__":
    service = CountService(name="test")
    prepare_from_arguments(service, Path("config.yml"))
    service.run_service()
