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


def add_header_option(parser: argparse.ArgumentParser) -> None:
    """Add the command-line option --header 'NAME: VALUE', which may be repeated.

    The parsed value `headers` is a list of (name, value).
    """
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
    """Return the API key to send: `option`, else PADDLEWHEEL_API_KEY of the environment, else None.

    Raises ValueError for a key that can't be a header's value.
    """
    key = option or os.environ.get(VARIABLE) or None
    if key is not None and not re.fullmatch(r"[!-~]+", key):
        raise ValueError("the API key holds something else than printable ASCII characters")
    return key


def add_api_key_option(parser: argparse.ArgumentParser) -> None:
    """Add the command-line option --api-key, the key that the client sends to the service.

    The environment variable is safer: other users of the machine can see a command line.
    """
    parser.add_argument(
        "--api-key", metavar="KEY", help=f"to show to the service (default: {VARIABLE} in the environment)"
    )
