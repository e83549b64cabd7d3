"""What became of one request, and the tally of all of them."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    ANSWERED = "answered"
    REFUSED = "refused"  # as the service promises to refuse; the reason says what
    FAILED = "failed"  # neither answered nor refused: an error, a lost connection, silence
    MISMATCHED = "mismatched"  # with another answer than its own


HEALTH = "/health/live"  # an endpoint of its own in the tally; its waits are no inferences


class Outcome(NamedTuple):
    kind: Kind
    reason: str = ""


@dataclass
class Death:
    """A worker was killed `at` (time.monotonic).

    retried: requests that it had, as the service counts them. bereft_s: how long after it those were answered
    that were under way then, the worker's and all others. over: a successor is ready.
    """

    at: float
    retried: int = 0
    bereft_s: array[float] = field(default_factory=lambda: array("d"))
    over: bool = False


class Tally:
    """Outcomes and the longest wait, by endpoint.

    usual_s: what answers took while no worker was dead or being replaced after its death.
    health_s: what answers of `/health/live` took.
    """

    def __init__(self) -> None:
        self.by_endpoint: dict[str, Counter[Kind]] = {}
        self.refusals: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()  # reasons of what failed or mismatched
        self.max_wait_s: dict[str, float] = {}
        self.deaths: list[Death] = []
        self.usual_s = array("d")
        self.health_s = array("d")

    def note(self, endpoint: str, outcome: Outcome, began: float) -> None:
        """A request that was sent at `began` (time.monotonic) has come to its end."""
        ended = time.monotonic()
        waited_s = ended - began
        self.by_endpoint.setdefault(endpoint, Counter())[outcome.kind] += 1
        self.max_wait_s[endpoint] = max(waited_s, self.max_wait_s.get(endpoint, 0.0))
        if outcome.kind is Kind.REFUSED:
            self.refusals[outcome.reason] += 1
        elif outcome.kind is not Kind.ANSWERED:
            self.faults[f"{endpoint}: {outcome.reason}"] += 1
        elif endpoint == HEALTH:
            self.health_s.append(waited_s)
        elif self.deaths and began < self.deaths[-1].at:
            self.deaths[-1].bereft_s.append(ended - self.deaths[-1].at)
        elif not self.deaths or self.deaths[-1].over:
            self.usual_s.append(waited_s)

    def total(self, kind: Kind) -> int:
        return sum(counts[kind] for counts in self.by_endpoint.values())
