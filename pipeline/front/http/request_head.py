"""Checks of a request's headers that need no body: its version, Host and transfer coding (RFC 9112)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pipeline.api.examples import KEY_VALUE_EXAMPLE
from pipeline.errors import InvalidInput, ServingError

USAGE = f"Send POST /{{service}}/{{method}} with a body like {KEY_VALUE_EXAMPLE}"
HTTP_1_0, HTTP_1_1 = "1.0", "1.1"
_NOT_IMPLEMENTED = 501
_VERSION_NOT_SUPPORTED = 505
HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]{0,5})?")


def check_version(version: str) -> None:
    """Raise ServingError (505) for another major version than HTTP/1; HTTP/1.2 is read as HTTP/1.1."""
    if not version.startswith("1."):
        raise _refusal(f"HTTP/{version} is not served here; send HTTP/1.1.", _VERSION_NOT_SUPPORTED)


def check_host(version: str, headers: Mapping[bytes, bytes]) -> None:
    """Raise ServingError (400) for a Host that is missing or malformed (RFC 9112 section 3.2)."""
    host = headers.get(b"host")
    if host is None:
        if version != HTTP_1_0:
            raise bad_request("The request has no Host header (RFC 9112 section 3.2).")
    elif not HOST.fullmatch(host):
        raise bad_request("The Host header is no host name or address, with or without a port.")


def check_transfer_encoding(version: str, encoding: bytes) -> None:
    """Raise ServingError for a transfer coding other than chunked (RFC 9112 section 6.1)."""
    if version == HTTP_1_0:
        raise bad_request("HTTP/1.0 has no Transfer-Encoding; send Content-Length.")
    if encoding.strip().lower() != b"chunked":
        shown = encoding[:100].decode("latin-1")
        raise _refusal(f"Transfer-Encoding {shown!r} is not supported; send 'chunked'.", _NOT_IMPLEMENTED)


def bad_request(message: str) -> ServingError:
    """The refusal (400) of bytes that are no valid HTTP request."""
    return InvalidInput(f"{message} {USAGE}")


def _refusal(message: str, http_status: int) -> ServingError:
    error = bad_request(message)
    error.http_status = http_status
    return error
