"""TextService: a model of texts as a service, as the command line starts it and as workers run it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipeline.api.app import App
from pipeline.api.op import Op, RequestOp
from pipeline.api.service import WebService
from pipeline.ops.text_files import TextSettings
from pipeline.ops.text_ops import TextOp


class TextService(WebService):
    """Serves one model; nothing of it is in files."""

    def __init__(self, name: str, settings: TextSettings) -> None:
        super().__init__(name)
        self._settings = settings

    def get_pipeline_response(self, read_op: RequestOp) -> Op:
        return TextOp(name=self.name, input_ops=[read_op], **asdict(self._settings))

    def as_app(self) -> App:
        arguments = (self.name, json.dumps(asdict(self._settings)))
        script = str(Path(__file__).resolve())
        return replace(
            super().as_app(), script=script, module="pipeline.ops.text_service", arguments=arguments
        )


def service_config(
    name: str, model: Path, *, http_port: int, rpc_port: int, engine: str
) -> Mapping[str, Any]:
    """Return the configuration of the service, as config.yml would have it."""
    return {
        "http_port": http_port,
        "rpc_port": rpc_port,
        "dag": {"http_errors": "status", "request_timeout": 30},
        "op": {
            name: {
                "concurrency": 1,
                "batch_size": "auto" if engine == "auto" else 32,
                "local_service_conf": {
                    "engine": engine,
                    "client_type": "local_predictor",
                    "model_config": str(model),
                    "device_type": 0,
                    "thread_num": 2,
                },
            }
        },
    }


if __name__ == "__main__":  # in a worker
    TextService(sys.argv[1], TextSettings(**json.loads(sys.argv[2]))).serve()
