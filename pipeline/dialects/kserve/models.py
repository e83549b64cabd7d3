"""KServeModels: what can be asked over KServe: the service under its name, each model Op under its own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.errors import UnknownVersion
from pipeline.front.repository import LoadFailed, Repository, Standing
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.models.tensor_spec import Signature
from pipeline.models.versions import UNVERSIONED

_MOST_VERSION = (1 << 63) - 1
_NUMBER = re.compile(r"[ \t-\r]*([+-]?0*[0-9]{1,19})(?![0-9])")


@dataclass(frozen=True)
class KServeModel:
    """A model as clients of KServe see it: the service as a whole, or the model of one Op."""

    name: str
    op: str  # whose model it is; empty for the service
    signature: Signature
    version: str = UNVERSIONED

    @property
    def platform(self) -> str:
        return "paddlewheel_model" if self.op else "paddlewheel_service"

    def metadata(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": self.platform,
            "inputs": [spec.document() for spec in self.signature.inputs],
            "outputs": [spec.document() for spec in self.signature.outputs],
        }


class KServeModels:
    """Looks models up. An Op named as the service is called `<name>_model`, for the name is the service's."""

    def __init__(self, scheduler: Scheduler, repository: Repository) -> None:
        self._scheduler = scheduler
        self._repository = repository
        app = scheduler.app
        self._service = KServeModel(app.name, "", app.signature, scheduler.version)
        self._op_of = {
            f"{op}_model" if op == app.name else op: op for op in app.dag.order if not op.startswith("@")
        }

    def all(self) -> Iterable[KServeModel]:
        """All models in the order of their names, those that are unloaded included."""
        models = [self._current_service()]
        models += [model for name in self._op_of if (model := self._op_model(name)) is not None]
        return sorted(models, key=lambda model: model.name)

    def loaded(self) -> Iterable[KServeModel]:
        """The models that may be asked."""
        return [model for model in self.all() if not self._scheduler.has_unloaded(model.op)]

    def find(self, name: str, version: str = "") -> KServeModel:
        """The model of this name; an empty version is the one that is served.

        Raises KServeRefusal for a model that is not there or unloaded, and for a version that is no number,
        UnknownVersion for one that is not served.
        """
        wanted = version_number(version) if version else None
        model = self._current_service() if name == self._service.name else self._op_model(name)
        if model is None:
            raise KServeRefusal(f"Request for unknown model: '{name}' is not found", "NOT_FOUND")
        if self._scheduler.has_unloaded(model.op):
            raise KServeRefusal(f"Request for unknown model: '{name}' has no available versions", "NOT_FOUND")
        if wanted is not None and wanted != int(model.version):
            raise UnknownVersion(name, str(wanted))
        return model

    def _current_service(self) -> KServeModel:
        version = self._scheduler.version
        if version != self._service.version:
            self._service = replace(self._service, version=version)
        return self._service

    def _op_model(self, name: str) -> KServeModel | None:
        op = self._op_of.get(name)
        pool = None if op is None else self._scheduler.pools[op]
        if op is None or pool is None or pool.signature is None:
            return None
        return KServeModel(name, op, pool.signature, pool.plan.version)

    def is_ready(self, name: str, version: str = "") -> bool:
        """Whether there is such a model and it can be asked."""
        try:
            return self.ready(self.find(name, version))
        except (KServeRefusal, UnknownVersion):
            return False

    def ready(self, model: KServeModel) -> bool:
        return self._scheduler.op_ready(model.op) if model.op else self._scheduler.ready

    # Loading and unloading:

    def ops_of(self, name: str) -> list[str]:
        """The Ops that are loaded and unloaded under this name: all for the service; none for a stranger."""
        if name == self._service.name:
            return list(self._scheduler.pools)
        return [self._op_of[name]] if name in self._op_of else []

    def standing(self, model: KServeModel) -> Standing:
        """Its state in the repository; of the service the worst of its Ops' states."""
        if model.op:
            return self._repository.standing(model.op)
        standings = [self._repository.standing(op) for op in self._scheduler.pools]
        return next((one for one in standings if one.state != "READY"), standings[0])

    def failure(self, model: KServeModel) -> LoadFailed | None:
        """Why the last load of the Op failed."""
        return self._repository.failures.get(model.op)


def version_number(version: str) -> int:
    """The number of a version as Triton reads it: in front of whatever follows. Raises KServeRefusal."""
    number = _NUMBER.match(version)
    if number is None or abs(int(number[1])) > _MOST_VERSION:
        raise KServeRefusal(
            f"failed to get model version from specified version string '{version[:100]}' (details: stol), "
            "version should be an integral value > 0"
        )
    if int(number[1]) < 0:
        raise KServeRefusal(
            f"invalid model version specified '{version[:100]}' , version should be an integral value > 0"
        )
    return int(number[1])
