"""The API key of a client: an argument, an option, or PADDLEWHEEL_API_KEY in the environment."""

from __future__ import annotations

import argparse
import os
import re

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
