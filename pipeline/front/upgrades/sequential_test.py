"""A sequential test of whether a new model changes more answers than the old model changes by itself.

The test is valid at any number of requests, so that it may be evaluated after each request. It bets on the
difference of two indicators. Under the null hypothesis the wealth of each bet is a supermartingale. By
Ville's inequality, it reaches 1 / alpha with a probability of at most alpha. The wealth is the mean over
several stakes (method of mixtures).

Source: I. Waudby-Smith and A. Ramdas, "Estimating means of bounded random variables by betting", Journal of
the Royal Statistical Society B 86, 2024.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

ALPHA = 0.005  # probability of refusing an equal model, and of accepting a worse one before the last request
# Stakes as shares of the largest possible stake, with weights. Large stakes find rare changes soonest, where
# the old model does not change its answers; small stakes find changes above the noise of the old model.
_STAKES = ((0.95, 0.5), (0.7, 0.125), (0.4, 0.125), (0.2, 0.125), (0.08, 0.125))
_MAX_EVIDENCE = 700.0  # logarithm, of which `math.exp` is a number
_BOUND_STEPS = 40  # of a bisection


class Verdict(StrEnum):
    """The current result of a sequential test: continue, accept or refuse."""

    CONTINUE = "continue"
    ACCEPT = "accept"
    REFUSE = "refuse"


class _Bet(NamedTuple):
    """A bet of the sequential test: logarithms of its weight, and of its growth at each request outcome."""

    weight: float
    plus: float  # only the new model has changed the answer
    minus: float  # only the old model has
    zero: float  # both or neither


class SequentialTest:
    """Statistical test by betting: counts changed answers, and decides whether a new model changes too many.

    Each request has two indicators: whether the new model's answer differs from the old model's answer, and
    whether a second answer of the old model differs from its first. The excess is the mean difference between
    the two indicators. A new model with an excess above the tolerance is refused.
    """

    def __init__(self, tolerance: float = 0.0, max_requests: float = math.inf, alpha: float = ALPHA) -> None:
        """Create the test, without requests. alpha: probability of a wrong decision.

        tolerance: accepted share of changed answers, from 0 up to 1. max_requests: number of requests after
        which the new model is accepted, unless it was refused before.
        """
        if not 0.0 <= tolerance < 1.0:
            raise ValueError(f"tolerance {tolerance} is not from 0 up to 1")
        self.tolerance = tolerance
        self.requests = 0
        self.changed = 0  # requests that the new model answers differently
        self.noise = 0  # requests that the old model answers differently the second time
        self._max_requests = max_requests
        self._needed = -math.log(alpha)
        self._only_new = self._only_old = 0
        self._above, self._below = _place_bets(tolerance, 1), _place_bets(tolerance, -1)

    def count_request(self, *, changed: bool, noise: bool) -> None:
        """Count a request.

        changed: whether the new model's answer differs. noise: whether the old model's second answer differs.
        """
        self.requests += 1
        self.changed += changed
        self.noise += noise
        self._only_new += changed and not noise
        self._only_old += noise and not changed

    @property
    def verdict(self) -> Verdict:
        """The decision after the requests counted so far."""
        if self._compute_evidence(self._above) >= self._needed:
            return Verdict.REFUSE
        if self.requests >= self._max_requests:
            return Verdict.ACCEPT
        if self.tolerance and self._compute_evidence(self._below) >= self._needed:
            return Verdict.ACCEPT
        return Verdict.CONTINUE

    @property
    def excess(self) -> float:
        """Share of answers that the new model changes beyond the share that the old model changes."""
        return (self.changed - self.noise) / self.requests if self.requests else 0.0

    @property
    def evidence(self) -> float:
        """Wealth of the bets against the new model; a wealth of 1 / alpha or more rejects the model."""
        return math.exp(min(_MAX_EVIDENCE, self._compute_evidence(self._above)))

    def compute_bound(self) -> float:
        """Return the upper confidence bound of the excess, valid at all times with probability 1 - alpha."""
        low, high = 0.0, 1.0
        for _ in range(_BOUND_STEPS):
            middle = (low + high) / 2
            if self._compute_evidence(_place_bets(middle, -1)) >= self._needed:
                high = middle
            else:
                low = middle
        return high

    def _compute_evidence(self, bets: tuple[_Bet, ...]) -> float:
        """Return the logarithm of the mean wealth of these bets."""
        plus, minus = self._only_new, self._only_old
        zero = self.requests - plus - minus
        logs = [bet.weight + plus * bet.plus + minus * bet.minus + zero * bet.zero for bet in bets]
        highest = max(logs)
        return highest + math.log(sum(math.exp(log - highest) for log in logs))


def _place_bets(mean: float, sign: int) -> tuple[_Bet, ...]:
    """Return bets that the excess of changed answers is above `mean` (sign 1), or below it (sign -1).

    A request loses at most a share below 1 of the wealth, so the wealth stays positive.
    """
    largest_loss = 1 + sign * mean
    return tuple(
        _Bet(math.log(weight), *(math.log1p(share * sign * (z - mean) / largest_loss) for z in (1, -1, 0)))
        for share, weight in _STAKES
    )
