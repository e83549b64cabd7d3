"""One request on its way through the scheduler."""

from __future__ import annotations

import math
from typing import Any, Protocol

import msgspec

from pipeline.api.request_options import RequestOptions
from pipeline.front.metrics.timings import Timings
from pipeline.front.scheduler.admission import Client


class Finish(Protocol):
    """What is to be done around a request besides, such as writing its outputs into shared memory."""

    def begin(self) -> None:
        """Called once, when the request is admitted. Does not raise."""
        ...

    def end(self, answer: Any) -> Any:
        """Returns what is sent in place of the worker's answer, or of an error; given None, the client has
        left. Called once, whatever becomes of the request. Does not raise."""
        ...


class Request(msgspec.Struct, eq=False):
    """A request, as a dialect has read it.

    inputs: str, bytes, ndarray or list by name, in the order given. log_id: the client's own, 0 without.
    deadline: an instant of time.monotonic(), math.inf for none. priority: smaller leaves first.
    timings: where its time goes, kept where the answer shall tell (dag.use_profile). model: the one that is
    asked, by its name; empty for the service's first. rows: what statistics count it for.
    version: the one of the model that the client asks for; empty: the one that is served.
    model_version: the one that makes the answer, known when a worker is given the request.
    form: of the answer, by its name in the dialect. wish: what that form leaves open, known to the dialect
    alone: what msgpack can carry.
    finish: makes what is sent of the worker's answer.
    options: what the client said of it, for the hooks; None when nothing.
    client: who asks, and door: the name of the way it came, for the door to set. turn: its place in line, see
    `pipeline.front.scheduler.admission.FairQueue`.
    """

    service: str
    method: str
    inputs: dict[str, Any]
    log_id: int = 0
    client_ip: str = ""
    form: str = ""
    deadline: float = math.inf
    priority: int = 0
    timings: Timings | None = None
    model: str = ""
    rows: int = 1
    version: str = ""
    model_version: str = ""
    wish: Any = None
    finish: Finish | None = None
    options: RequestOptions | None = None
    client: Client | None = None
    door: str = ""
    turn: int = 0
