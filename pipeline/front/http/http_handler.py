"""HttpHandler: answers HTTP requests in one dialect: how a prediction begins, and how its end is told."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from pipeline.errors import OUR_FAULT, ServingError
from pipeline.front.http.http_request import HttpRequest
from pipeline.front.scheduler.dag_run import Answer
from pipeline.front.scheduler.request import Request
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.messages.values import Part

log = logging.getLogger(__name__)

JSON = b"content-type: application/json\r\n"


class HttpHandler(ABC):
    """Base of those that dialects bring along. name: how metrics and log call it."""

    name: ClassVar[str]

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._access_log = scheduler.access_log

    @abstractmethod
    def take(self, request: HttpRequest) -> None:
        """Answer at once, or when the scheduler has the answer."""

    @abstractmethod
    def refusal(self, error: ServingError) -> tuple[bytes, bytes]:
        """Header lines and body that refuse what was no request yet."""

    @abstractmethod
    def refuse(self, request: HttpRequest, error: ServingError, head: bytes = b"") -> None:
        """Respond in the dialect's form of a refusal, and note it in the access log."""

    @abstractmethod
    def _send(self, request: HttpRequest, parts: list[Part], head: bytes) -> None:
        """Respond with the answer that a worker made. head: header lines besides the dialect's own."""

    def _predict(self, request: HttpRequest, read: Callable[..., Request], *given: Any) -> None:
        """Give the scheduler what `read` makes of the request; answered sooner or later, whatever happens.

        read: called with the request and what is `given` besides; raises ServingError.
        """
        try:
            asked = read(request, *given)
            asked.client = request.client
            dag_run = self._scheduler.begin(asked, partial(self._answer, request, asked))
        except ServingError as exc:
            self._answer(request, None, exc)
        except Exception:
            log.exception("A fault of ours in POST %s", request.path)
            self._answer(request, None, OUR_FAULT)
        else:
            request.on_left = dag_run.leave

    def _answer(self, request: HttpRequest, asked: Request | None, answer: Answer) -> None:
        head = b""
        if asked is not None and asked.timings is not None:
            head = b"server-timing: %b\r\n" % asked.timings.header().encode()
        if self._access_log.tells_each:
            error = answer if isinstance(answer, ServingError) else None
            self._access_log.tell(self.name, request.peer, f"POST {request.path}", request.began, error)
        if isinstance(answer, list):
            self._access_log.answered(self.name)
            self._send(request, answer, head)
        else:
            self.refuse(request, answer, head)


def retry_after(error: ServingError) -> bytes:
    """The header of a refusal that says when to try again; empty for others."""
    wait_s = getattr(error, "retry_after_s", None)
    return b"" if wait_s is None else b"retry-after: %d\r\n" % max(1, math.ceil(wait_s))


def header(request: HttpRequest, name: bytes) -> str:
    """A header's value; empty where it is not there."""
    return request.headers.get(name, b"").decode("latin-1")
