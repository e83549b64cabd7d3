"""The errors of a call of the service, as its caller sees them.

ClientError
|-- ServiceUnreachable       no connection, or it broke off before the answer.
|-- RequestTimedOut          the call's `timeout_s`, or the service's own deadline, passed.
|-- BadAnswer                what answered does not speak the service's protocol.
`-- RequestRefused           an answer with an `err_no`.
    |-- TooManyRequests      overloaded: HTTP 429, gRPC RESOURCE_EXHAUSTED.
    `-- ServiceUnavailable   not ready, or stopping: HTTP 502 and 503, gRPC UNAVAILABLE.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

TIMED_OUT_ERR_NO = 6000  # of an answer that says the deadline has passed


class ClientError(Exception):
    """A call that has no answer. `retry_after_s` is the wait the service asked for, if it did."""

    retryable = False
    """Whether the same call may succeed when it is sent again."""

    retry_after_s: float | None = None


class ServiceUnreachable(ClientError):
    """No connection: no server listens at the address, or the connection broke before the answer."""

    retryable = True


class RequestTimedOut(ClientError):
    """No answer in time; the message says whose limit it was."""


class BadAnswer(ClientError):
    """The answer is not one of this service: another program has the port, or a proxy answered."""


class RequestRefused(ClientError):
    """The service answered with an error: `err_no` (None when it named none), `err_msg`, and the HTTP status.

    `http_status` is None over gRPC.
    """

    def __init__(
        self,
        err_no: int | None,
        err_msg: str,
        http_status: int | None = None,
        *,
        retry_after_s: float | None = None,
    ) -> None:
        where = f", HTTP {http_status}" if http_status is not None else ""
        super().__init__(f"{err_msg} (err_no {err_no}{where})")
        self.err_no = err_no
        self.err_msg = err_msg
        self.http_status = http_status
        self.retry_after_s = retry_after_s


class TooManyRequests(RequestRefused):
    """The service is overloaded; `retry_after_s` says when to come back."""

    retryable = True


class ServiceUnavailable(RequestRefused):
    """The service is starting, stopping, or has lost its workers."""

    retryable = True


@contextlib.contextmanager
def numpy_required() -> Iterator[None]:
    """Inside, an import that fails for want of NumPy says how to install it."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name != "numpy":
            raise
        hint = f"arrays need NumPy, which is not installed: {sys.executable} -m pip install numpy"
        raise ModuleNotFoundError(hint, name="numpy") from None
