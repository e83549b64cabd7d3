"""Forwarded headers: names of the headers that become parameters of inference requests.

Triton's `--http-header-forward-pattern` and `--grpc-header-forward-pattern`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_CASE_SENSITIVE = "(?-i)"  # RE2's prefix, which Python's `re` does not know


class HeaderPatterns(NamedTuple):
    """Patterns of header names on the HTTP port, and of metadata keys on the gRPC port.

    An empty text means no pattern.
    """

    http: str = ""
    grpc: str = ""


NO_PATTERNS = HeaderPatterns()


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return the compiled pattern of header names.

    The pattern ignores case, unless the pattern begins with (?-i). Raises re.error.
    """
    if pattern.startswith(_CASE_SENSITIVE):
        return re.compile(pattern.removeprefix(_CASE_SENSITIVE))
    return re.compile(pattern, re.IGNORECASE)
