"""The exceptions that the clients raise when a request gets no result.

ClientError
|-- ServiceUnreachable       no connection, or it broke off before the answer.
|-- RequestTimedOut          the call's `timeout_s`, or the service's own deadline, passed.
|-- BadAnswer                another kind of server answered.
`-- RequestRefused           the service answered with an error.
    |-- TooManyRequests      overloaded: HTTP 429, gRPC RESOURCE_EXHAUSTED.
    `-- ServiceUnavailable   not ready, or stopping: HTTP 502 and 503, gRPC UNAVAILABLE.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

TIMED_OUT_ERR_NO = 6000  # of an answer that says the deadline has passed


class ClientError(Exception):
    """Base class of the exceptions that a client raises if a request fails.

    `retry_after_s`: seconds after which the service asks the client to retry; None if it gives no time.
    """

    retryable = False
    """Whether the same call may succeed when it is sent again."""

    retry_after_s: float | None = None


class ServiceUnreachable(ClientError):
    """Raised if no server listens at the address, or the connection breaks before the answer."""

    retryable = True


class RequestTimedOut(ClientError):
    """Raised if no answer arrives in time. The message tells whether client or service set the limit."""


class BadAnswer(ClientError):
    """Raised for an answer that is not in the service's protocol, such as a proxy's error page.

    Perhaps another server listens on the port.
    """


class RequestRefused(ClientError):
    """Raised if the service answers with an error, such as HTTP 400.

    `err_no` is the error number of Paddle Serving, None if the answer has none; `err_msg` is the message.
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
    """Raised if the service is overloaded (HTTP 429); retry after `retry_after_s`."""

    retryable = True


class ServiceUnavailable(RequestRefused):
    """Raised if the service is starting, stopping, or without workers (HTTP 502 and 503)."""

    retryable = True


@contextlib.contextmanager
def numpy_required() -> Iterator[None]:
    """Context manager for an import of NumPy; if NumPy is missing, the error says how to install it."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name != "numpy":
            raise
        hint = f"arrays need NumPy, which is not installed: {sys.executable} -m pip install numpy"
        raise ModuleNotFoundError(hint, name="numpy") from None
