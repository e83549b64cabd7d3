"""The interface of clients of models on other servers, for processes that may have no such model.

The clients are in `pipeline.engines.remote`, which imports gRPC.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.models.serving_model import Variable


@dataclass(frozen=True)
class RemoteConf:
    """Servers, timeout and tries of an Op (a step of the service) whose model runs on other servers."""

    op: str
    endpoints: tuple[str, ...]
    timeout_s: float  # of one try
    tries: int  # in all
    first: int = 0  # index of the first endpoint, so that instances begin with different endpoints
    key_file: str = ""  # see `RemoteKey`


class RemotePredictor(ABC):
    """Interface of a client whose `run` calls a model on another server.

    Several threads may run it at once.
    """

    merges: ClassVar[bool]  # whether feeds are arrays that may hold rows of several requests

    @property
    @abstractmethod
    def feeds(self) -> tuple[Variable, ...]: ...

    @property
    @abstractmethod
    def fetches(self) -> tuple[Variable, ...]: ...

    @abstractmethod
    def run(
        self, feeds: Mapping[str, Any], *, deadline: float = math.inf, traceparent: str = ""
    ) -> dict[str, Any]:
        """Send inputs to a server, and return the outputs by name, before `deadline` (by time.monotonic).

        traceparent: W3C header of a traced request, by which the server continues the trace; empty without a
        trace. Raises DeadlineExceeded, RemoteUnreachable, Overloaded, InvalidInput, ModelFailed, or
        RemoteRefused.
        """

    @abstractmethod
    def close(self) -> None: ...
