"""The page at /docs: a model's card, fields for what it takes, its answer, and every operation to try.

It is one document that loads nothing from anywhere; its policy lets the browser run nothing else. All that it
shows comes of /openapi.json and /health/ready.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
# One script in this order: each file uses what those before it define, and when it is called the others.
_SCRIPTS = (
    "words",
    "elements",
    "kept",
    "requests",
    "inputs",
    "answers",
    "card",
    "doors",
    "repository",
    "page",
)


@cache
def page() -> tuple[bytes, bytes]:
    """Header lines and body."""
    script = b"\n".join((_FOLDER / f"{name}.js").read_bytes() for name in _SCRIPTS)
    style = (_FOLDER / "page.css").read_bytes()
    body = (_FOLDER / "page.html").read_bytes().replace(b"@style@", style).replace(b"@script@", script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    head = (
        "content-type: text/html; charset=utf-8\r\n"
        f"content-security-policy: {policy}\r\n"
        "x-content-type-options: nosniff\r\n"
        "referrer-policy: no-referrer\r\n"
        "cache-control: no-cache\r\n"
    )
    return head.encode(), body


def _hash(text: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"
