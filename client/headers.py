"""Headers that a client sends besides its own, with its API key; over gRPC they are metadata."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, section 5.6.2
_VALUE = re.compile(r"[\t -~]*")


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers. Raises ValueError for one that could not be sent, or would begin a line of its own."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(
                f"header {name!r}, {value!r} is not of the form 'Name: value' in printable ASCII"
            )
        if name.lower() in ("content-length", "host", "transfer-encoding"):
            raise ValueError(f"header {name!r} is for the client to say")
    return dict(headers)


def add_header_option(parser: argparse.ArgumentParser) -> None:
    """--header, which may be repeated; the option holds pairs."""
    parser.add_argument(
        "--header",
        dest="headers",
        action="append",
        type=_pair,
        default=[],
        metavar="'NAME: VALUE'",
        help="sent with each request, over gRPC as metadata; again for more",
    )


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition(":")
    try:
        ((name, value),) = checked_headers({name.strip(): value.strip()}).items()
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None
    return name, value


VARIABLE = "PADDLEWHEEL_API_KEY"
HEADER = "x-api-key"  # over gRPC metadata, too


def find_api_key(option: str | None) -> str | None:
    """Return the key or the environment's; None without either. Raise ValueError for an invalid header."""
    key = option or os.environ.get(VARIABLE) or None
    if key is not None and not re.fullmatch(r"[!-~]+", key):
        raise ValueError("the API key holds something else than printable ASCII characters")
    return key


def add_api_key_option(parser: argparse.ArgumentParser) -> None:
    """Add --api-key. The environment is safer: other users can see a command line."""
    parser.add_argument(
        "--api-key", metavar="KEY", help=f"to show to the service (default: {VARIABLE} in the environment)"
    )
