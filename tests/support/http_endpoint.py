"""One service for all tests of the HTTP port, with limits small enough to reach."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.support.service_process import APPS, ServiceProcess, key_value

LIMITS = {
    "body_bytes": 100_000,
    "header_count": 20,
    "header_bytes": 8192,
    "header_timeout_s": 0.2,
    "body_timeout_s": 0.2,
    "text_chars": 1000,
    "json_depth": 8,
}
GOOD = key_value({"number": "21"})


@contextlib.contextmanager
def endpoint(http_errors: str) -> Iterator[ServiceProcess]:
    """The service with `dag.http_errors` as given."""
    with ServiceProcess(APPS / "echo.py", {"dag": {"http_errors": http_errors}, "limits": LIMITS}) as service:
        service.errors = http_errors
        yield service
