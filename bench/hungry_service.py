"""A service whose Op allocates as much memory as a request asks for, and answers with its process id."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pipeline import Op, WebService
from pipeline.script import prepare_from_arguments


class HungryOp(Op):
    def preprocess(self, input_dicts: Any, data_id: Any, log_id: Any) -> Any:
        (inputs,) = input_dicts.values()
        block = b"x" * (int(inputs.get("megabytes", 0)) * 1_000_000)
        return {"taken": str(len(block)), "pid": str(os.getpid())}


class HungryService(WebService):
    def get_pipeline_response(self, read_op: Any) -> Any:
        return HungryOp(name="hungry", input_ops=[read_op])


if __name__ == "__main__":
    service = HungryService(name="hungry")
    prepare_from_arguments(service, Path(__file__).with_name("config.yml"))
    service.run_service()
