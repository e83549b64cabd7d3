"""Extra HTTP headers and the API key of a client's requests; gRPC clients send them as metadata."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, section 5.6.2
_VALUE = re.compile(r"[\t -~]*")


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of HTTP headers after validation.

    Raises ValueError for a header with a line feed or other invalid characters, and for Host, Content-Length
    and Transfer-Encoding, which the client sets.
    """
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(
                f"header {name!r}, {value!r} is not of the form 'Name: value' in printable ASCII"
            )
        if name.lower() in ("content-length", "host", "transfer-encoding"):
            raise ValueError(f"header {name!r} is for the client to say")
    return dict(headers)


def parse_header(text: str) -> tuple[str, str]:
    """Return name and value of a header in a command-line option "Name: value".

    Raise ArgumentTypeError for an invalid header.
    """
    name, _, value = text.partition(":")
    try:
        ((name, value),) = checked_headers({name.strip(): value.strip()}).items()
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None
    return name, value


VARIABLE = "PADDLEWHEEL_API_KEY"
HEADER = "x-api-key"  # over gRPC metadata, too


def find_api_key(option: str | None) -> str | None:
    """Return the API key to send: `option`, or the environment variable PADDLEWHEEL_API_KEY, or None.

    Raises ValueError for a key that can't be the value of a header.
    """
    key = option or os.environ.get(VARIABLE) or None
    if key is not None and not re.fullmatch(r"[!-~]+", key):
        raise ValueError("the API key holds something else than printable ASCII characters")
    return key
