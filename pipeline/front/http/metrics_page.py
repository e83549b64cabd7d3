"""MetricsPage: /metrics, rendered so seldom that requests for it can not take the event loop's time."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

from pipeline.front.http.connection import HttpRequest
from pipeline.front.metrics.metrics import CONTENT_TYPE, Metrics

_HEAD = b"content-type: %b\r\n" % CONTENT_TYPE.encode()
_ANSWERS_A_TURN = 32  # of the loop: each is copied into its connection


class MetricsPage:
    """Answers requests for /metrics: at once, or after `interval_s` since the last rendering.

    Requests that wait share the next rendering, so no answer is older than its request.
    """

    def __init__(self, metrics: Metrics, interval_s: float) -> None:
        self._metrics = metrics
        self._interval_s = interval_s
        self._rendered_at = -math.inf
        self._waiting: deque[HttpRequest] = deque()

    def answer(self, request: HttpRequest) -> None:
        now = time.monotonic()
        if not self._waiting and now >= self._rendered_at + self._interval_s:
            request.respond(200, _HEAD, self._render())
            return
        if not self._waiting:
            wait_s = self._rendered_at + self._interval_s - now
            asyncio.get_running_loop().call_later(wait_s, self._answer_waiting)
        self._waiting.append(request)

    def _render(self) -> bytes:
        self._rendered_at = time.monotonic()
        return self._metrics.text()

    def _answer_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        _answer_some(waiting, self._render())


def _answer_some(waiting: deque[HttpRequest], text: bytes) -> None:
    for _ in range(min(_ANSWERS_A_TURN, len(waiting))):
        waiting.popleft().respond(200, _HEAD, text)
    if waiting:
        asyncio.get_running_loop().call_soon(_answer_some, waiting, text)
