"""Checks of HTTP request headers: RFC 9112, size and time limits, upgrade requests, and API keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from pipeline.api.examples import KEY_VALUE_EXAMPLE
from pipeline.api.restrictions import RestrictedApis
from pipeline.config.config_file import SecurityConfig
from pipeline.errors import InvalidInput, ServingError, TooLarge
from pipeline.front.dag_run import Client
from pipeline.front.scheduler.admission import KeyRing, find_key

USAGE = f"Send POST /{{service}}/{{method}} with a body like {KEY_VALUE_EXAMPLE}"
_UPGRADE_OPTIONS = (b"upgrade", b"http2-settings")  # headers, and options of Connection
HTTP_1_0, HTTP_1_1 = "1.0", "1.1"
_REQUEST_TIMEOUT = 408
_PAYLOAD_TOO_LARGE = 413
_HEADER_TOO_LARGE = 431
_NOT_IMPLEMENTED = 501
_VERSION_NOT_SUPPORTED = 505
HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]{0,5})?")


def check_version(version: str) -> None:
    """Raise ServingError (505) unless the request's version is HTTP/1.x. version: such as "1.1"."""
    if not version.startswith("1."):
        raise _error_with_status(f"HTTP/{version} is not served here; send HTTP/1.1.", _VERSION_NOT_SUPPORTED)


def check_host(version: str, host: bytes | None) -> None:
    """Raise ServingError (400) if the Host header is missing or malformed (RFC 9112 section 3.2)."""
    if host is None:
        if version != HTTP_1_0:
            raise bad_request("The request has no Host header (RFC 9112 section 3.2).")
    elif not HOST.fullmatch(host):
        raise bad_request("The Host header is no host name or address, with or without a port.")


def check_transfer_encoding(version: str, encoding: bytes) -> None:
    """Raise ServingError unless the Transfer-Encoding header is "chunked" (501).

    For HTTP/1.0, which has no such header, raises it always (400).
    """
    if version == HTTP_1_0:
        raise bad_request("HTTP/1.0 has no Transfer-Encoding; send Content-Length.")
    if encoding.strip().lower() != b"chunked":
        shown = encoding[:100].decode("latin-1")
        raise _error_with_status(
            f"Transfer-Encoding {shown!r} is not supported; send 'chunked'.", _NOT_IMPLEMENTED
        )


def bad_request(message: str) -> ServingError:
    """Return the error (400) for bytes that are no valid HTTP request. It tells how to use the service."""
    return InvalidInput(f"{message} {USAGE}")


def _error_with_status(message: str, http_status: int) -> ServingError:
    """Return an error like `bad_request`, with another HTTP status."""
    error = bad_request(message)
    error.http_status = http_status
    return error


def too_slow(part: str, limit_s: float) -> ServingError:
    """Return the error (408) for a request that did not arrive in time. part: "headers" or "body"."""
    error = InvalidInput(f"the {part} did not arrive within {limit_s:g} s. {USAGE}")
    error.http_status = _REQUEST_TIMEOUT
    return error


def headers_too_large(problem: str) -> ServingError:
    """Return the error (431) for headers over a limit. problem: the text after "the request has"."""
    return _too_large(f"the request has {problem}", _HEADER_TOO_LARGE)


def body_too_large(problem: str) -> ServingError:
    """Return the error (413) for a body over `limits.body_bytes`. problem: the beginning of the message."""
    keys = " (limits.body_bytes); of a model repository it is --http-max-input-size"
    return _too_large(problem, _PAYLOAD_TOO_LARGE, keys)


def _too_large(problem: str, http_status: int, keys: str = "") -> ServingError:
    """Return an error whose message tells where config.yml sets the limit. keys: text after "limits"."""
    error = TooLarge(f"{problem}; the limits of this service are in config.yml under limits{keys}")
    error.http_status = http_status
    return error


def remove_upgrade_headers(headers: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the headers without those that ask to switch to another protocol, such as Upgrade: h2c."""
    remaining = {name: value for name, value in headers.items() if name not in _UPGRADE_OPTIONS}
    options = [option.strip() for option in remaining.pop(b"connection", b"").split(b",")]
    options = [option for option in options if option and option.lower() not in _UPGRADE_OPTIONS]
    if options:
        remaining[b"connection"] = b", ".join(options)
    return remaining


class HttpGuard:
    """Checks the API key of HTTP requests, and access to restricted APIs, before the body is received."""

    def __init__(
        self,
        keys: KeyRing | None,
        security: SecurityConfig,
        health: Collection[bytes],
        restricted: RestrictedApis | None,
        find_api: Callable[[bytes], str],
    ) -> None:
        """Create a guard. keys: API keys; None if the server has none.

        health: paths that need no key if `security.open_health` is set. restricted: APIs that need a header
        of their own (Triton's --http-restricted-api). find_api: returns the API of a URL.
        """
        self._keys = keys
        self._restricted = restricted
        self._find_api = find_api
        metrics = (b"/metrics",) if security.open_metrics else ()
        opened = health if security.open_health else ()
        # The first two pages reveal nothing, and /docs prompts for the key.
        self._open = frozenset((b"/", b"/docs", *opened, *metrics))
        self._anyone = Client()

    def client(self, url: bytes, headers: Collection[tuple[bytes, bytes]], connection: Client) -> Client:
        """Check the API key and the restricted API of a request. Return its client, for fair queueing.

        connection: returned as the client if the server has no API keys. Raises Unauthenticated (401) or
        RestrictedApi (403).
        """
        client = connection
        if self._keys is not None:
            client = self._anyone if url in self._open else self._keys.find(find_key(headers))
        if self._restricted is not None:
            self._restricted.check(self._find_api(url), headers)
        return client
