"""Retries of a client's failed requests, and the waits before them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from client.errors import ClientError, RequestTimedOut

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 5.0

T = TypeVar("T")


def pause_s(tries: int, retry_after_s: float | None, jitter: float) -> float:
    """Return the seconds to wait after `tries` failed tries, with exponential backoff.

    retry_after_s: wait that the service has requested, used as a lower bound. jitter: random number in [0,
    1), which spreads the retries of many clients.
    """
    if retry_after_s is not None:
        return retry_after_s * (1 + 0.1 * jitter)
    longest: float = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** (tries - 1))
    return longest * (0.5 + 0.5 * jitter)


def call_with_retries(send: Callable[[float], T], *, timeout_s: float, retries: int) -> T:
    """Call `send(remaining_s)` until it returns, with at most `retries` retries, within `timeout_s`.

    Only a ClientError that is `retryable` is retried; the last error is raised. If the wait before a retry
    would exceed `timeout_s`, the error is raised at once.
    """
    deadline = time.monotonic() + timeout_s
    tries = 0
    while True:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise RequestTimedOut(f"no answer within timeout_s={timeout_s:g}")
        try:
            return send(remaining_s)
        except ClientError as error:
            tries += 1
            if not error.retryable or tries > retries:
                raise
            wait_s = pause_s(tries, error.retry_after_s, random.random())
            if time.monotonic() + wait_s >= deadline:
                raise
        time.sleep(wait_s)


def parse_retry_after(header: str | None, now: datetime | None = None) -> float | None:
    """Parse the HTTP header Retry-After, seconds or a date, to seconds from now; None if invalid."""
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())
