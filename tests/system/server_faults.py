"""Schemathesis hook: a check that no request makes the server fail, loaded by `SCHEMATHESIS_HOOKS`."""

from __future__ import annotations

from typing import Any

import schemathesis

# Triton answers 500 to a body that it can't parse, and its clients know these words (docs/errors.md).
UNREADABLE = ("failed to parse the request JSON buffer", "Unable to parse")


@schemathesis.check
def no_server_fault(ctx: Any, response: Any, case: Any) -> None:
    """Fail for a 5xx status, except for the words that Triton has for an unreadable body."""
    status, text = response.status_code, response.text
    unreadable = case.path.startswith("/v2/") and any(words in text for words in UNREADABLE)
    if status >= 500 and not (status == 500 and unreadable):
        raise AssertionError(f"{case.method} {case.path} was answered {status}: {text[:300]}")
