"""V2Server: what HTTP and gRPC answer from: models, orders to load them, shared memory, settings, figures."""

from __future__ import annotations

from typing import Any

from pipeline import __version__
from pipeline.dialects.kserve.models import KServeModels
from pipeline.dialects.kserve_v2.model_config import model_config
from pipeline.dialects.kserve_v2.repository_api import Control
from pipeline.dialects.kserve_v2.shared_memory import SharedMemory
from pipeline.dialects.kserve_v2.statistics import model_stats
from pipeline.dialects.kserve_v2.trace_settings import LogSettings, TraceSettings
from pipeline.front.repository import Repository
from pipeline.front.scheduler.scheduler import Scheduler

SERVER_NAME = "triton"  # its own example programs stop at any other name
_NO_SHARED_MEMORY = (  # as Triton says it
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)
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


class V2Server:
    """The service as a server of KServe v2, one for both doors."""

    def __init__(self, scheduler: Scheduler, repository: Repository) -> None:
        config = scheduler.app.config
        self.scheduler = scheduler
        self.limits = config.limits
        self.models = KServeModels(scheduler, repository)
        self.control = Control(self.models, repository, explicit=config.v2.model_control == "explicit")
        if scheduler.app.repository is None:
            self.memory = SharedMemory(config.v2.shared_memory)
        else:
            self.memory = SharedMemory(config.v2.shared_memory, _NO_SHARED_MEMORY)
        self.trace = TraceSettings()
        self.logging = LogSettings()

    def metadata(self) -> dict[str, Any]:
        """What the server tells of itself."""
        offered = [name for name in _NAMES if self.memory.offered or not name.endswith("shared_memory")]
        name, app = SERVER_NAME, self.scheduler.app
        if app.repository is not None:
            offered.insert(offered.index("model_repository") + 1, "model_repository(unload_dependents)")
            name = app.name  # as --id says it
        return {"name": name, "version": __version__, "extensions": offered}

    def get_metadata(self, name: str, version: str) -> dict[str, Any]:
        """What a model tells of itself. Raises KServeRefusal and UnknownVersion."""
        return self.models.find(name, version).metadata(() if version else self.models.versions(name))

    def config(self, name: str, version: str) -> dict[str, Any]:
        """The configuration of a model. Raises KServeRefusal and UnknownVersion."""
        app = self.scheduler.app
        model = self.models.find(name, version)
        if model.config is not None:
            return dict(model.config)
        return model_config(model, app.config, self.models.answering_op(model))

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """The statistics of a model, or of all that are loaded. Raises KServeRefusal."""
        return model_stats(self.scheduler, self.models, name, version)

    def close(self) -> None:
        """Give back what clients have left registered."""
        self.memory.unregister()
