"""Several addresses of one service: how they are written, and the failover from one to the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from client.errors import ClientError, RequestTimedOut, ServiceUnavailable, ServiceUnreachable

SEVERAL = "several with commas between them"
"""Part of the help of each option that takes addresses."""

T = TypeVar("T")


def split_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses of a text such as "host1:8088,host2:8088".

    Raises ValueError for an empty or repeated address.
    """
    addresses = tuple(part.strip() for part in text.split(","))
    if not all(addresses):
        raise ValueError(f"address {text!r} has an empty part; separate addresses by one comma")
    if len(set(addresses)) < len(addresses):
        raise ValueError(f"address {text!r} names one address twice; name each once")
    return addresses


def call_in_turn(sends: Sequence[Callable[[float], T]], timeout_s: float) -> T:
    """Call the functions one after another with the remaining seconds, until one returns a result.

    Each function sends the same request to another address. The next function is called at once if an address
    is unreachable or unavailable. Requests must be idempotent, because an address may have executed a request
    before its connection broke. Raises the last ClientError, whose message has the errors of all addresses.
    """
    deadline = time.monotonic() + timeout_s
    failures: list[ClientError] = []
    for send in sends:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            failures.append(RequestTimedOut(f"timeout_s={timeout_s:.3g} passed"))
            break
        try:
            return send(remaining_s)
        except ClientError as error:
            failures.append(error)
            if not isinstance(error, ServiceUnreachable | ServiceUnavailable) or not error.retryable:
                break
    last = failures[-1]
    if len(failures) > 1:
        last.args = ("; ".join(dict.fromkeys(map(str, failures))),)
    raise last
