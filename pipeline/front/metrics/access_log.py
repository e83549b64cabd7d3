"""AccessLog: what becomes of each request, counted for /metrics and told in the log."""

from __future__ import annotations

import asyncio
import logging
import time

from pipeline.errors import InvalidInput, ModelFailed, ServingError, Unauthenticated, UnknownService
from pipeline.front.metrics.metrics import Metrics
from pipeline.process.log import one_line

log = logging.getLogger(__name__)

QUIET_S = 10.0  # after a refusal is told, others of its kind are only counted for this long
UNREAD = "Untaken answers"  # what `warn` tells of at every door
_CLIENTS_MISTAKES = (InvalidInput, UnknownService, Unauthenticated)


class AccessLog:
    """Each request at DEBUG; refusals of ours a line a kind in ten seconds, so that no client fills the log.

    What a hook raised is told by its worker; what it refused is between the app and its clients. What a model
    refused to run is told here: by mistake of the app or its clients, and the operator is to know of either.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._outcomes = metrics.outcomes
        self._untold: dict[tuple[str, int], int] = {}  # kinds told of late, by level: cases since then
        self.tells_each = log.isEnabledFor(logging.DEBUG)

    def answered(self, door: str) -> None:
        self._outcomes[door, 0] += 1

    def refused(self, door: str, error: ServingError) -> None:
        self._outcomes[door, error.err_no] += 1
        kind = type(error)
        if kind is ServingError:  # of a worker
            if error.err_no != ModelFailed.err_no:
                return
            kind = ModelFailed
        if self._is_due(kind.__name__, _level(kind)):
            log.log(_level(kind), "%s over %s: %s", kind.__name__, door, one_line(error.message))

    def warn(self, kind: str, text: str) -> None:
        """A line for what no request is refused with."""
        if self._is_due(kind, logging.WARNING):
            log.warning("%s: %s", kind, text)

    def _is_due(self, name: str, level: int) -> bool:
        """Whether to tell of a case of its kind; if not, it is counted."""
        kind = name, level
        if kind in self._untold:
            self._untold[kind] += 1
            return False
        self._untold[kind] = 0
        asyncio.get_running_loop().call_later(QUIET_S, self._tell_untold, kind)
        return True

    def tell(self, door: str, peer: str, what: str, began: float, error: ServingError | None) -> None:
        """A line for one request; `began`: time.monotonic. To be called where `tells_each` says so."""
        took_ms = (time.monotonic() - began) * 1000
        outcome = "ok" if error is None else f"err_no {error.err_no}"
        log.debug("%s %s %s: %s in %.1f ms", door, peer, one_line(what), outcome, took_ms)

    def close(self) -> None:
        """Tell what has only been counted yet."""
        for kind in list(self._untold):
            self._tell_untold(kind)

    def _tell_untold(self, kind: tuple[str, int]) -> None:
        count = self._untold.pop(kind, 0)
        if count:
            name, level = kind
            log.log(level, "%s: %d more in the last %g s", name, count, QUIET_S)
            self._untold[kind] = 0
            asyncio.get_running_loop().call_later(QUIET_S, self._tell_untold, kind)


def _level(kind: type[ServingError]) -> int:
    return logging.INFO if issubclass(kind, _CLIENTS_MISTAKES) else logging.WARNING
