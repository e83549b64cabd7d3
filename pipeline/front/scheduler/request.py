"""One request on its way through the engine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from pipeline.api.request_options import RequestOptions
from pipeline.dialects.answer_form import AnswerForm, V1Wish, Wish

if TYPE_CHECKING:
    from pipeline.front.metrics.timings import Timings
    from pipeline.front.scheduler.clients import Client


class Finish(Protocol):
    """Begun once, when the request is admitted, and ended once, whatever becomes of it. Neither raises."""

    def begin(self) -> None: ...

    def end(self, answer: Any) -> Any:
        """What is sent in place of the worker's answer, or of an error; given None, the client has left."""


class Request(msgspec.Struct, eq=False):
    """What a codec makes of one message.

    inputs: str, bytes, ndarray or list by name, in the order given. log_id: the client's own, 0 without.
    deadline: an instant of time.monotonic(), math.inf for none. priority: smaller leaves first.
    timings: where its time goes, kept where the answer shall tell (dag.use_profile). op: the Op that is asked
    by itself, with its model's feeds as `inputs`; empty: the whole DAG. rows: what statistics count it for.
    version: the one of the model that the client asks for; empty: the one that is served.
    wish: what the answer's form leaves open, as `Wish` for the forms of KServe v2
    and `V1Wish` for that of v1.
    finish: makes what is sent of the worker's answer.
    options: what the client said of it, for the hooks; None when nothing.
    client: who asks, for the door to set. turn: its place in line, see `pipeline.front.scheduler.fair_queue`.
    """

    service: str
    method: str
    inputs: dict[str, Any]
    log_id: int = 0
    client_ip: str = ""
    form: AnswerForm = AnswerForm.JSON
    deadline: float = math.inf
    priority: int = 0
    timings: Timings | None = None
    op: str = ""
    rows: int = 1
    version: str = ""
    wish: Wish | V1Wish | None = None
    finish: Finish | None = None
    options: RequestOptions | None = None
    client: Client | None = None
    turn: int = 0
