"""The HEALTHCHECK of the images: `python -P -m pipeline.process.health_check`.

The exit code is 0 if the running service is ready, on whatever port it listens.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
import sys
from collections.abc import Iterable, Iterator

from pipeline.process.processes import running_services

TIMEOUT_S = 4.0  # of one connection; Docker ends the health check after 5 s
_HOST = "127.0.0.1"
_PATH = "/health/ready"
_KNOWN = (200, 503)  # statuses of the page; ports of gRPC and of metrics have no such page


def is_ready(ports: Iterable[int]) -> bool:
    """Return whether a service with these listening ports is ready.

    A service without an HTTP port counts as ready, because ports open only after the models are loaded.
    """
    return next(filter(None, map(_read_status, ports)), 200) == 200


def _read_status(port: int) -> int | None:
    """Return the HTTP status of /health/ready on a port; None if the port has no such page."""
    for connection in _create_connections(port):
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", _PATH)
            status = connection.getresponse().status
            return status if status in _KNOWN else None
    return None


def _create_connections(port: int) -> Iterator[http.client.HTTPConnection]:
    yield http.client.HTTPConnection(_HOST, port, timeout=TIMEOUT_S)
    context = ssl.create_default_context()
    # The certificate is not for this address, and only the status is read.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    yield http.client.HTTPSConnection(_HOST, port, timeout=TIMEOUT_S, context=context)


def main() -> int:
    """Check all services of this container, and return the exit code: 0 if all are ready.

    The exit code is 1 if there is no service, or a service has no open port.
    """
    services = running_services()
    is_healthy = bool(services) and all(service.ports and is_ready(service.ports) for service in services)
    return 0 if is_healthy else 1


if __name__ == "__main__":
    sys.exit(main())
