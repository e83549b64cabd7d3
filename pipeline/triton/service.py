"""RepositoryService: a model repository as a service, as the command line starts it and as workers run it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.api.app import App
from pipeline.api.examples import Examples
from pipeline.api.op import Op
from pipeline.api.served_models import models_of
from pipeline.api.service import Service
from pipeline.config.config_file import load_config
from pipeline.errors import ConfigError, StartFailed
from pipeline.triton.repository import ModelRepository
from pipeline.triton.repository_op import RepositoryOp

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 600  # Triton has none
MAX_PENDING_REQUESTS = 16384  # nor this


@dataclass(frozen=True)
class Options:
    """What the command line says. folders: of the repository."""

    folders: tuple[Path, ...]
    name: str = "triton"
    http_port: int | None = 8000
    grpc_port: int | None = 8001
    metrics_port: int | None = 8002
    strict: bool = False
    control: str = "none"
    exit_on_error: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)


class RepositoryService(Service):
    """Serves the models of a repository. options: None in a worker, which is told by the front."""

    def __init__(self, name: str, options: Options | None = None) -> None:
        super().__init__(name)
        self._options = options

    def op_of(self, app: App, name: str) -> Op:
        for model in app.models:
            if model.op == name:
                return RepositoryOp(name, model)
        raise StartFailed(f"the repository has no model {name}")

    def _as_app(self) -> App:
        assert self._options is not None
        options = self._options
        served = ModelRepository(options.folders, options.strict).read()
        if not served.models:
            told = [f"{name}: {why.reason}" for name, why in served.unavailable.items()]
            folders = ", ".join(map(str, options.folders))
            raise ConfigError("\n".join([f"{folders} holds no model that can be served", *told]))
        for name, (version, why) in served.unavailable.items():
            log.error("Model %s%s is not served: %s", name, f" version {version}" if version else "", why)
        if served.unavailable and options.exit_on_error:
            raise ConfigError(f"not all models can be served: {', '.join(served.unavailable)}")
        ports = {
            "http_port": options.http_port,
            "rpc_port": options.grpc_port,
            "v2": {"metrics_port": options.metrics_port, "model_control": options.control},
        }
        config = load_config(
            {
                **ports,
                "dag": {
                    "is_thread_op": False,
                    "http_errors": "status",
                    "request_timeout": REQUEST_TIMEOUT_S,
                    "max_pending_requests": MAX_PENDING_REQUESTS,
                },
                "op": served.sections,
                **options.config,
            }
        )
        return App(
            name=self.name,
            models=models_of(_Read(served.models)),
            config=config,
            script=str(Path(__file__).resolve()),
            arguments=(self.name,),
            folder=str(Path.cwd()),
            examples=Examples({}, {}),
            module="pipeline.triton.service",
            exit_on_error=options.exit_on_error,
            unavailable=served.unavailable,
        )


class _Read:
    """The models that were read: a ModelSource."""

    def __init__(self, models: list[Any]) -> None:
        self._models = models

    def models(self) -> list[Any]:
        return self._models


if __name__ == "__main__":  # in a worker
    RepositoryService(sys.argv[1]).serve()
