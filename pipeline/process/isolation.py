"""Isolation of callbacks: an exception in one step is logged, and the steps after it still run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import ParamSpec

log = logging.getLogger(__name__)

QUIET_S = 10.0  # between two tracebacks of a step, which may run a thousand times a second

P = ParamSpec("P")
_logged_at: dict[str, float] = {}  # by the name of the step, time.monotonic


def run_isolated(step: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> bool:
    """Run a step of a callback, and log the exception that it raises. Returns whether it raised none.

    For callbacks of the event loop that change several objects: each object must be told, whatever becomes
    of the others.
    """
    try:
        step(*args, **kwargs)
    except Exception:
        log_fault(step)
        return False
    return True


def log_fault(step: Callable[..., object]) -> None:
    """Log the exception that is being handled, at most once in `QUIET_S` for each step."""
    name = getattr(step, "__qualname__", repr(type(step)))
    now = time.monotonic()
    if now >= _logged_at.get(name, 0.0) + QUIET_S:
        _logged_at[name] = now
        log.exception("A fault of ours in %s", name)
