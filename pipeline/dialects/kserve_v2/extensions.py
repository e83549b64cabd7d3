"""Extensions: what the server keeps for clients of KServe v2 beside the models, and which it tells of."""

from __future__ import annotations

from typing import Any

from pipeline import __version__
from pipeline.config.config_file import V2Config
from pipeline.dialects.kserve_v2.shared_memory import SharedMemory
from pipeline.dialects.kserve_v2.trace_settings import LogSettings, TraceSettings

SERVER_NAME = "triton"  # its own example programs stop at any other name
_NAMES = (
    "classification",
    "model_repository",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


class Extensions:
    """Of one server, for both of its doors."""

    def __init__(self, config: V2Config) -> None:
        self.memory = SharedMemory(config.shared_memory)
        self.trace = TraceSettings()
        self.logging = LogSettings()

    def server_metadata(self) -> dict[str, Any]:
        offered = [name for name in _NAMES if self.memory.offered or not name.endswith("shared_memory")]
        return {"name": SERVER_NAME, "version": __version__, "extensions": offered}

    def close(self) -> None:
        """Give back what clients have left registered."""
        self.memory.unregister()
