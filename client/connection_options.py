"""The command-line options of every client: headers, TLS and the API key of its connections."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.headers import VARIABLE, parse_header
from client.options import option
from client.tls import Tls


@dataclass(frozen=True)
class ConnectionOptions:
    """The command-line options for a client's connections to the service."""

    headers: tuple[tuple[str, str], ...] = option(
        "--header",
        default=(),
        action="append",
        type=parse_header,
        metavar="'NAME: VALUE'",
        help="sent with each request, over gRPC as metadata; again for more",
    )
    ca: Path | None = option(
        metavar="FILE", help="PEM file of the authority that signed the service's certificate"
    )
    cert: Path | None = option(metavar="FILE", help="PEM file of a certificate to show to the service")
    key: Path | None = option(metavar="FILE", help="PEM file of its private key")
    # The environment variable is safer: other users of the machine can see a command line.
    api_key: str | None = option(
        metavar="KEY", help=f"to show to the service (default: {VARIABLE} in the environment)"
    )

    def create_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of a client or connection: `tls`, `api_key` and `headers`.

        Without --ca and --cert, `tls` is None: HTTP uses TLS if the URL is https, and gRPC uses no TLS.
        """
        tls = None if self.ca is None and self.cert is None else Tls(self.ca, self.cert, self.key)
        return {"tls": tls, "api_key": self.api_key, "headers": dict(self.headers)}
