"""Paddle Serving's import path of `WebService` and `Op`."""

from __future__ import annotations

from typing import NoReturn

import pipeline
from pipeline import Op
from pipeline.errors import ConfigError

__all__ = ["Op", "WebService"]

FLASK_ENDPOINT = frozenset(
    (
        "create_rpc_config",
        "default_rpc_service",
        "get_app_instance",
        "get_prediction",
        "load_model_config",
        "prepare_server",
        "run_debugger_service",
        "run_rpc_service",
        "run_web_service",
        "set_gpus",
    )
)
"""What WebService had for a C++ server behind Flask, beside the Pipeline."""


class WebService(pipeline.WebService):
    """Base class of a service script; its methods for Paddle Serving's C++ server raise ConfigError.

    The error message says what to do instead.
    """

    def __getattr__(self, name: str) -> NoReturn:
        if name in FLASK_ENDPOINT:
            raise ConfigError(
                f"service {self.name}: WebService.{name} was for Paddle Serving's C++ server behind Flask, "
                "which is not part of Paddlewheel; make the preprocess and postprocess of this service hooks "
                "of an Op, return it from get_pipeline_response, then call prepare_pipeline_config and "
                "run_service"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
