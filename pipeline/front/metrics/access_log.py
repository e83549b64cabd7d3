"""Access log with the outcome of each request, and the Tracer, a periodic log line for each Op."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.errors import Overloaded, RemoteRefused, ServingError, is_clients, is_servers
from pipeline.front.metrics.metrics import Metrics
from pipeline.process.isolation import isolated
from pipeline.process.log import QUIET_S, one_line

log = logging.getLogger(__name__)

MAX_SUMS = 256  # kinds of refusals that are counted at a time; further clients are counted as OTHERS
OTHERS = "others"
_OVERLOADED = Overloaded.__name__
UNREAD = "Untaken answers"  # kind of the warnings about clients that read no responses


class Kind(NamedTuple):
    """Key by which the log groups rejected requests: the kind of error, the protocol and the client."""

    name: str
    endpoint: str
    client: str
    level: int

    def __str__(self) -> str:
        """Return the beginning of a log line, such as "Overloaded over http from 10.0.0.1"."""
        return f"{self.name} over {self.endpoint} from {self.client}" if self.endpoint else self.name


@dataclass(slots=True)
class Sum:
    """Number of rejected requests of one `Kind` since its last log line, and the latest error message."""

    count: int = 0
    latest: str = ""


class AccessLog:
    """Counts the outcomes of requests for /metrics, and logs rejected requests.

    At level DEBUG, each request is logged. A rejection is logged immediately, and further rejections of the
    same kind as one sum every ten seconds, so that no client fills the log. Errors that a worker has already
    logged are only counted.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._outcomes = metrics.outcomes
        self._sums: dict[Kind, Sum] = {}  # of the kinds that were logged in the last ten seconds
        self.follow_level()

    def follow_level(self) -> None:
        """Enable or disable the log lines of all requests, as the current level of the logger requires."""
        self.logs_requests = log.isEnabledFor(logging.DEBUG)

    def answered(self, endpoint: str) -> None:
        """Count a request with a successful response. endpoint: name of its protocol."""
        self._outcomes[endpoint, 0] += 1

    @isolated(None)
    def refused(self, endpoint: str, error: ServingError, client: str) -> None:
        """Count a rejected or failed request, and log it or add it to a sum of its kind.

        client: address of the client, with the name of its API key.
        """
        self._outcomes[endpoint, error.err_no] += 1
        if error.logged:
            return
        if type(error) is Overloaded:  # the case that has to be cheap
            kind = Kind(_OVERLOADED, endpoint, client, logging.WARNING)
        else:
            kind = Kind(error.kind or type(error).__name__, endpoint, client, _level(error))
        self._log_case(kind, error.message)

    @isolated(None)
    def warn(self, kind: str, text: str) -> None:
        """Log a warning that concerns no single request.

        Warnings of the same kind are summed up like rejections.
        """
        self._log_case(Kind(kind, "", "", logging.WARNING), text)

    def _log_case(self, kind: Kind, text: str) -> None:
        """Log a rejection or warning. If its kind was logged in the last ten seconds, only count it."""
        counted = self._sums.get(kind)
        if counted is not None:
            counted.count += 1
            counted.latest = text
            return
        if len(self._sums) >= MAX_SUMS and kind.endpoint and kind.client != OTHERS:
            self._log_case(kind._replace(client=OTHERS), text)
            return
        self._sums[kind] = Sum()
        log.log(kind.level, "%s: %s", kind, one_line(text))
        asyncio.get_running_loop().call_later(QUIET_S, self._log_sum, kind)

    @isolated(None)
    def log_request(
        self, endpoint: str, peer: str, what: str, began: float, error: ServingError | None
    ) -> None:
        """Write the DEBUG log line of one request. Call this method only if `logs_requests` is set.

        what: method and path, or the gRPC method. began: instant of time.monotonic(). error: None for a
        successful request.
        """
        took_ms = (time.monotonic() - began) * 1000
        outcome = "ok" if error is None else f"err_no {error.err_no}"
        log.debug("%s %s %s: %s in %.1f ms", endpoint, peer, one_line(what), outcome, took_ms)

    def close(self) -> None:
        """Log the sums that are not logged yet, at the end of the service."""
        for kind in list(self._sums):
            self._log_sum(kind)

    @isolated(None)
    def _log_sum(self, kind: Kind) -> None:
        """Log how many events of a kind came in the last ten seconds. Forget the kind if none came."""
        cases = self._sums.pop(kind, Sum())
        if cases.count:
            log.log(
                kind.level, "%s: %d more in the last %g s, the latest: %s",
                kind, cases.count, QUIET_S, one_line(cases.latest),
            )  # fmt: skip
            self._sums[kind] = Sum()
            asyncio.get_running_loop().call_later(QUIET_S, self._log_sum, kind)


def _level(error: ServingError) -> int:
    """Return the logging level of an error: INFO for errors of the client, ERROR for errors of the server.

    WARNING for overload, and for errors of a remote service.
    """
    if is_clients(error):
        return logging.INFO
    remote = RemoteRefused.__name__ in (error.kind, type(error).__name__)
    return logging.ERROR if is_servers(error) and not remote else logging.WARNING


class Tracer:
    """Logs a line of statistics for each pipeline step (Op) every `dag.tracer.interval_s` seconds.

    A line contains the interval's requests, batches, errors and mean times. An interval of 0 or less disables
    the lines.
    """

    def __init__(self, metrics: Metrics, ops: Iterable[str], interval_s: float) -> None:
        self._metrics = metrics
        self._ops = tuple(ops)
        self._interval_s = interval_s
        self._last_totals: dict[tuple[str, str], float] = {}

    @contextlib.asynccontextmanager
    async def log_in_background(self) -> AsyncIterator[None]:
        """Context manager: log in the background until the block ends."""
        task = asyncio.create_task(self._run(), name="tracer") if self._interval_s > 0 else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()

    async def _run(self) -> None:
        self._last_totals = self._metrics.op_totals()
        while True:
            await asyncio.sleep(self._interval_s)
            self._log_growth()

    @isolated(None)
    def _log_growth(self) -> None:
        totals = self._metrics.op_totals()
        grown = {key: value - self._last_totals.get(key, 0.0) for key, value in totals.items()}
        self._last_totals = totals
        for op in self._ops:
            log.info("%s", self._line(op, grown))

    def _line(self, op: str, grown: dict[tuple[str, str], float]) -> str:
        """Return the log line of a pipeline step (Op). grown: increase of each metric since the last line."""

        def sum_and_count(histogram: str) -> tuple[float, float]:
            name = f"paddlewheel_op_{histogram}"
            return grown.get((f"{name}_sum", op), 0.0), grown.get((f"{name}_count", op), 0.0)

        queue_s, requests = sum_and_count("queue_seconds")
        predictor_s, batches = sum_and_count("predictor_seconds")
        rows, _ = sum_and_count("batch_rows")
        errors = grown.get(("paddlewheel_op_errors_total", op), 0.0)
        return (
            f"Op {op} in {self._interval_s:g} s: {requests:.0f} requests, "
            f"queue {_mean_ms(queue_s, requests)}; "
            f"{batches:.0f} batches of {rows / max(1.0, batches):.1f} rows, "
            f"predictor {_mean_ms(predictor_s, batches)}; {errors:.0f} errors"
        )


def _mean_ms(total_s: float, count: float) -> str:
    """Return the mean of times as text in milliseconds."""
    return f"{total_s / max(1.0, count) * 1000:.1f} ms"
