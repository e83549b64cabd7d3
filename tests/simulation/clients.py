"""Simulated clients: what they send, how long they wait, and when they leave."""

from __future__ import annotations

import asyncio
import math
import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from pipeline.api.request_options import RequestOptions
from pipeline.errors import ServingError
from pipeline.front.dag_run import Answer, Client, DagRun, Request
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.models.sequence_tensors import END, START

ARRAY_BYTES = 4608  # above `INLINE_BYTES`, so that the array itself travels, and its life can be watched
LARGE_ARRAY_BYTES = 20_000
FILLS = 251  # values that arrays are filled with


@dataclass
class Order:
    """A request as a client makes it."""

    kind: str = "answer"  # effect in a worker: also `slow`, `error`, `poison`, `hang` or `hang_thread`
    node: str = ""  # the Op where it has that effect; empty for each
    slow_s: float = 0.0
    code: int = -9  # return code of the worker that dies of it
    size: int = 40
    timeout_s: float = math.inf
    leaves_s: float = math.inf  # until its client leaves
    priority: int = 0
    queue_timeout_us: int = 0
    array_bytes: int = 0
    sequence: str = ""  # empty: a sequence of its own, where the service has sequences
    flags: int = START | END


@dataclass
class Death:
    """A worker's death while a request was in it."""

    op: str
    begun: bool  # the worker had begun with the request
    alone: bool  # and with nothing else
    cause: str


@dataclass
class Sent:
    """A request that was admitted, and what has become of it.

    alone_of_client: its client had nothing else pending when it came. outcome: `answer`, the kind of an
    error, `left`, or empty while it is open.
    """

    number: int
    order: Order
    client: Client
    at: float
    deadline: float
    alone_of_client: bool
    outcome: str = ""
    ended_at: float = 0.0
    ends: int = 0
    then: Callable[[], None] = lambda: None
    dag_run: DagRun | None = None
    array: weakref.ref[Any] | None = None
    begun: dict[str, int] = field(default_factory=dict)
    deaths: list[Death] = field(default_factory=list)
    handed_over: bool = False
    overtaken_by: dict[Client, int] = field(default_factory=dict)
    movable_since: float = math.inf

    @property
    def good(self) -> bool:
        return self.order.kind in ("answer", "slow")


class Clients:
    """All clients of a run. `on_sent`, `on_refused` and `on_ended` are told of each request."""

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self.scheduler = scheduler
        self.rng = rng
        self.requests: dict[int, Sent] = {}
        self.open: dict[int, Sent] = {}
        self.on_sent: Callable[[Sent], None] = lambda sent: None
        self.on_refused: Callable[[Order, ServingError], None] = lambda order, error: None
        self.on_ended: Callable[[Sent, Answer | None], None] = lambda sent, answer: None
        self._numbers = 0

    def send(self, client: Client, order: Order, then: Callable[[], None] = lambda: None) -> Sent | None:
        """Send a request; `then` is called at its end. Returns None where it is refused at once."""
        self._numbers += 1
        number = self._numbers
        deadline = self.scheduler.deadline(order.timeout_s)
        array = np.full(order.array_bytes, number % FILLS, np.uint8) if order.array_bytes else None
        inputs = {
            "id": number, "do": order.kind, "node": order.node, "s": order.slow_s, "code": order.code,
            "size": order.size, "path": "", "data": array,
        }  # fmt: skip
        options = RequestOptions("", order.priority, order.queue_timeout_us, {})
        if self.scheduler.keeps_sequences(""):
            options = options._replace(
                correlation_id=order.sequence or f"request {number}", flags=order.flags
            )
        request = Request(
            "sim", "prediction", inputs, number, deadline=deadline, priority=order.priority, client=client,
            options=options, endpoint="http",
        )  # fmt: skip
        now = asyncio.get_running_loop().time()
        sent = Sent(number, order, client, now, deadline, not client.pending, then=then)
        self.requests[number] = self.open[number] = sent
        if array is not None:
            sent.array = weakref.ref(array)
        try:
            sent.dag_run = self.scheduler.begin_request(request, partial(self._answered, sent))
        except ServingError as exc:
            del self.requests[number], self.open[number]
            self.on_refused(order, exc)
            asyncio.get_running_loop().call_soon(then)
            return None
        if sent.outcome:  # answered within `begin`
            sent.dag_run = None
        self.on_sent(sent)
        if order.leaves_s < math.inf:
            asyncio.get_running_loop().call_later(order.leaves_s, self.leave, sent)
        return sent

    def leave(self, sent: Sent) -> None:
        """Have the client of a request leave, if it still waits."""
        if sent.outcome or sent.dag_run is None:
            return
        dag_run, sent.dag_run = sent.dag_run, None
        self._end(sent, "left")
        dag_run.leave()
        self.on_ended(sent, None)

    def _answered(self, sent: Sent, answer: Answer) -> None:
        sent.dag_run = None
        if not sent.outcome:
            kind = (answer.kind or type(answer).__name__) if isinstance(answer, ServingError) else "answer"
            self._end(sent, kind)
        self.on_ended(sent, answer)

    def _end(self, sent: Sent, outcome: str) -> None:
        sent.outcome = outcome
        loop = asyncio.get_running_loop()
        sent.ended_at = loop.time()
        self.open.pop(sent.number, None)
        loop.call_soon(sent.then)


class Caller:
    """A client that sends one request after the other, each some time after the answer to the one before."""

    def __init__(self, clients: Clients, orders: list[Order], pause_s: float) -> None:
        self.client = Client()
        self._clients = clients
        self._orders = orders
        self._pause_s = pause_s

    def begin(self) -> None:
        self._next()

    def stop(self) -> None:
        """Send nothing more."""
        self._orders.clear()

    def _next(self) -> None:
        if self._orders:
            pause_s = self._clients.rng.expovariate(1.0) * self._pause_s
            asyncio.get_running_loop().call_later(pause_s, self._send)

    def _send(self) -> None:
        if self._orders:
            self._clients.send(self.client, self._orders.pop(), self._next)
