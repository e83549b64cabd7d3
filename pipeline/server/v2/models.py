"""V2Models: what can be asked over KServe v2: the service under its name, and each model Op under its own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pipeline.server.engine import Engine
from pipeline.tensor_spec import Signature
from pipeline.v2_errors import V2Refusal

VERSION = "1"
_MOST_VERSION = (1 << 63) - 1


@dataclass(frozen=True)
class V2Model:
    """op: the Op whose model it is; empty for the service."""

    name: str
    op: str
    signature: Signature
    version: str = VERSION

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


class V2Models:
    """Looks models up. An Op named as the service is called `<name>_model`, for the name is the service's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        app = engine.app
        self._service = V2Model(app.name, "", app.signature)
        self._op_of = {
            f"{op}_model" if op == app.name else op: op for op in app.dag.order if not op.startswith("@")
        }

    def all(self) -> Iterable[V2Model]:
        """In the order of their names."""
        models = [self._service]
        signatures = self._engine.signatures()
        models += [V2Model(n, op, signatures[op]) for n, op in self._op_of.items() if op in signatures]
        return sorted(models, key=lambda model: model.name)

    def find(self, name: str, version: str = "") -> V2Model:
        """Raises V2Refusal for a model or version that is not there, and for a version that is no number."""
        if version:
            check_version(version)
        model = self._service if name == self._service.name else self._op_model(name)
        if model is None:
            raise V2Refusal(f"Request for unknown model: '{name}' is not found", "NOT_FOUND")
        if version and int(version) != int(model.version):
            raise V2Refusal(
                f"Request for unknown model: '{name}' version {int(version)} is not found", "NOT_FOUND"
            )
        return model

    def _op_model(self, name: str) -> V2Model | None:
        op = self._op_of.get(name)
        signature = None if op is None else self._engine.signatures().get(op)
        return None if op is None or signature is None else V2Model(name, op, signature)

    def is_ready(self, name: str, version: str = "") -> bool:
        """Whether there is such a model and it can be asked."""
        try:
            return self.ready(self.find(name, version))
        except V2Refusal:
            return False

    def ready(self, model: V2Model) -> bool:
        if not model.op:
            return self._engine.ready
        return self._engine.ready and self._engine.readiness()[model.op]["ready"] > 0


def check_version(version: str) -> None:
    """Raises V2Refusal for what is no number of a version."""
    if not re.fullmatch(r"\d{1,19}", version) or not 0 < int(version) <= _MOST_VERSION:
        raise V2Refusal(
            f"failed to get model version from specified version string '{version[:100]}' (details: stol), "
            "version should be an integral value > 0"
        )
