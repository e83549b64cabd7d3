"""The latest errors of admitted requests, for the page at /docs: their causes, without data of requests."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from operator import attrgetter

import msgspec

from pipeline.errors import (
    DeadlineExceeded,
    NotReady,
    Overloaded,
    PoisonRequest,
    RemoteUnreachable,
    SequenceLost,
    ServingError,
    WorkerLost,
    get_http_status,
)
from pipeline.process.isolation import isolated

MAX_CAUSES = 40
MAX_REQUESTS = 5  # of a cause
_MAX_CHARS = 300  # of a message
_MAX_ID_CHARS = 64  # of a client's id
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)
_FEEDS_REFUSED = "FeedsRefused"  # of `pipeline.engines.refusals`: the message is the engine's
# Their messages are this project's and name no value of a request.
_PLAIN = frozenset(
    kind.__name__
    for kind in (
        DeadlineExceeded, NotReady, Overloaded, PoisonRequest, RemoteUnreachable, SequenceLost, WorkerLost,
    )
)  # fmt: skip


class FailedRequest(msgspec.Struct):
    """A failed request: its number in the log, the id that the client gave it, if any, and the time."""

    number: int
    client_id: str
    at: float  # Unix time


class ErrorCause(msgspec.Struct):
    """A group of errors with the same cause: same class, model, Op and line of user code."""

    model: str
    op: str  # empty if no Op failed
    kind: str  # class of the error
    user_place: str  # see `ServingError`
    err_no: int
    http_status: int
    endpoint: str  # of the latest, as all fields below
    message: str = ""  # empty if it may hold values of a request
    count: int = 0
    requests: list[FailedRequest] = []  # the latest, newest last


class RecentErrors:
    """The latest causes of errors. A repeated cause moves to the end; beyond a limit, the oldest is dropped.

    Texts of exceptions may contain values of a request, and every client with an API key can see the page of
    errors. So messages are stored only for errors of this project, and without the numbers in errors of an
    engine.
    """

    def __init__(self) -> None:
        self._causes: dict[tuple[str, str, str, str], ErrorCause] = {}

    @isolated(None)
    def record_error(
        self, error: ServingError, *, model: str, endpoint: str, number: int, client_id: object
    ) -> None:
        """Record the error of a request.

        number: number of the request in the log. client_id: the client's id for the request; empty or 0 if it
        has none.
        """
        kind = error.kind or type(error).__name__
        key = model, error.op, kind, error.user_place
        cause = self._causes.pop(key, None)
        if cause is None:
            if len(self._causes) >= MAX_CAUSES:
                del self._causes[next(iter(self._causes))]
            cause = ErrorCause(*key, error.err_no, get_http_status(error), endpoint)
        self._causes[key] = cause
        cause.count += 1
        cause.endpoint, cause.message = endpoint, _find_plain_message(error, kind)
        shown_id = str(client_id)[:_MAX_ID_CHARS] if client_id else ""
        cause.requests = [*cause.requests[1 - MAX_REQUESTS :], FailedRequest(number, shown_id, time.time())]

    def list_causes(self) -> list[ErrorCause]:
        """Return the causes of errors, the latest last."""
        return list(self._causes.values())


def merge_causes(lists: Iterable[Iterable[ErrorCause]]) -> list[ErrorCause]:
    """Return the causes of errors of several processes, the latest last; at most MAX_CAUSES."""
    merged: dict[tuple[str, str, str, str], ErrorCause] = {}
    causes = [cause for causes in lists for cause in causes]
    for cause in sorted(causes, key=_get_time):
        key = cause.model, cause.op, cause.kind, cause.user_place
        former = merged.pop(key, None)
        if former is not None:
            requests = sorted([*former.requests, *cause.requests], key=attrgetter("at"))
            cause = msgspec.structs.replace(
                cause, count=former.count + cause.count, requests=requests[-MAX_REQUESTS:]
            )
        merged[key] = cause
    return list(merged.values())[-MAX_CAUSES:]


def _get_time(cause: ErrorCause) -> float:
    return cause.requests[-1].at


def _find_plain_message(error: ServingError, kind: str) -> str:
    """Return an error message without values of the request; empty if the message may contain values."""
    if kind in _PLAIN:
        return error.message[:_MAX_CHARS]
    if kind == _FEEDS_REFUSED:
        return _NUMBER.sub("#", error.message[:_MAX_CHARS])
    return ""
