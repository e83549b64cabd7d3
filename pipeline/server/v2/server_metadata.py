"""What the server tells of itself over KServe v2."""

from __future__ import annotations

from typing import Any

SERVER_NAME = "paddlewheel"
SERVER_VERSION = "0.1.0"
EXTENSIONS = (
    "classification",
    "model_repository",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
)


def server_metadata() -> dict[str, Any]:
    return {"name": SERVER_NAME, "version": SERVER_VERSION, "extensions": list(EXTENSIONS)}
