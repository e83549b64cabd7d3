"""Isolation of callbacks and telemetry: logs an exception in one step, so that later steps still run."""

from __future__ import annotations

import functools
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from pipeline.process.log import QUIET_S

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D")
fault_counts: Counter[str] = Counter()  # by the name of the step
_logged_at: dict[str, float] = {}  # by the name of the step, time.monotonic


def run_isolated(step: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> bool:
    """Call `step`, and log an exception instead of raising it. Return whether the call succeeded.

    Used in event loop callbacks that change several objects: a failure in one change must not skip the
    others.
    """
    try:
        step(*args, **kwargs)
    except Exception:
        log_fault(step)
        return False
    return True


def isolated(default: D) -> Callable[[Callable[P, T]], Callable[P, T | D]]:
    """Decorate a function so that it logs exceptions and returns `default` instead of raising.

    Used for run costs, metrics, traces and log lines, because an error in them must not fail the requests
    that they describe.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T | D]:
        @functools.wraps(function)
        def call_isolated(*args: P.args, **kwargs: P.kwargs) -> T | D:
            try:
                return function(*args, **kwargs)
            except Exception:
                log_fault(function)
                return default

        return call_isolated

    return decorate


def log_fault(step: Callable[..., object]) -> None:
    """Log the exception that is being handled, at most once in `QUIET_S` seconds per step. Never raises."""
    name = getattr(step, "__qualname__", repr(type(step)))
    fault_counts[name] += 1
    now = time.monotonic()
    if now >= _logged_at.get(name, 0.0) + QUIET_S:
        _logged_at[name] = now
        with suppress(Exception):  # of a filter or a handler that the app has added to our logger
            log.exception("A fault of ours in %s", name)
