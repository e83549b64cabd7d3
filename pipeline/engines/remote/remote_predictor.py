"""A model that another service runs: what the predictors of remote Ops have in common. Imports no gRPC."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.models.serving_model import Variable


@dataclass(frozen=True)
class RemoteConf:
    """Where a remote Op's model is, and how patiently it is asked.

    timeout_s: of one try. tries: in all. first: the endpoint to begin the round with, so that the instances
    of an Op do not all begin with the same one. key_file: see `RemoteKey`.
    """

    op: str
    endpoints: tuple[str, ...]
    timeout_s: float
    tries: int
    first: int = 0
    key_file: str = ""


class RemotePredictor(ABC):
    """A predictor whose `run` is a call over the network. Several threads may run it at once."""

    merges: ClassVar[bool]  # whether feeds are arrays, whose rows those of several requests may be

    @property
    @abstractmethod
    def feeds(self) -> tuple[Variable, ...]: ...

    @property
    @abstractmethod
    def fetches(self) -> tuple[Variable, ...]: ...

    @abstractmethod
    def run(self, feeds: Mapping[str, Any], *, deadline: float = math.inf) -> dict[str, Any]:
        """Fetches by name, before `deadline` (time.monotonic).

        Raises DeadlineExceeded, RemoteUnreachable, Overloaded, InvalidInput, ModelFailed, or RemoteRefused.
        """

    @abstractmethod
    def close(self) -> None: ...
