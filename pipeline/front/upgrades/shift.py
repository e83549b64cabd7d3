"""The steps of a canary: which requests the new version gets, and when their share grows or returns to 0."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.front.upgrades.sequential_test import SequentialTest, Verdict

LATE_SHARE = 0.05  # of the requests; more late requests than this return the share to 0
MIN_TIMES = 20  # of the served version, until a request can be late
_HUNDREDTHS = 100  # of a percent: whole numbers add up without rounding errors
_WHOLE = 100 * _HUNDREDTHS
_KEPT_TIMES = 1000  # of the latest requests
_RENEW_AFTER = 20  # requests of the new version, until the limit of late requests is computed again


@dataclass(frozen=True)
class CanarySettings:
    """Settings of a canary, as a client requests them."""

    shares: tuple[float, ...] = ()  # percent of the requests, by step, ascending; empty: no canary
    requests: int = 100  # that the new version gets in each step
    error_limit: float = 0.01  # share of the requests that only the new version may fail
    latency_limit: float = 2.0  # times the 95th percentile of the served version: above, a request is late


@dataclass
class Step:
    """A step of a canary release, with counts of the requests that the new version got in the step."""

    share: float  # percent of all requests
    requests: int = 0  # that have ended
    failed: int = 0  # that the served version has answered in place of the new version
    late: int = 0


class Shift:
    """Chooses an exact share of the requests for the new model version, and counts how these requests end.

    The share grows after a number of requests, and is 0 after the last step. It returns to 0 immediately if
    the new version fails or delays more requests than the served version. Sequential tests decide that, so
    that the decision is valid after each request.
    """

    def __init__(self, settings: CanarySettings) -> None:
        self.steps: list[Step] = []  # that have begun
        self.fault = ""  # the reason why the share has returned to 0; empty without a fault
        self._settings = settings
        self._is_over = False
        self._sum = 0  # of the share, since the latest request that was chosen
        self._errors = SequentialTest(settings.error_limit)
        self._lateness = SequentialTest(LATE_SHARE)
        self._old_times: deque[float] = deque(maxlen=_KEPT_TIMES)
        self._new_times: deque[float] = deque(maxlen=_KEPT_TIMES)
        self._late_s = math.inf

    @property
    def share(self) -> float:
        """Percent of the requests that the new version gets now."""
        return self.steps[-1].share if self.steps and not self._is_over else 0.0

    @property
    def is_over(self) -> bool:
        """Whether the canary has ended: its last step is complete, or the share has returned to 0."""
        return self._is_over

    @property
    def usual_s(self) -> float:
        """The 95th percentile of the served version's times in seconds; infinite before `MIN_TIMES`."""
        return self._late_s / self._settings.latency_limit

    def begin_step(self) -> None:
        """Begin the next step of the canary. After the last step, the new version's share is 0."""
        self._renew_late_s()
        at = len(self.steps)
        if at == len(self._settings.shares):
            self._is_over = True
        else:
            self.steps.append(Step(self._settings.shares[at]))

    def stop(self) -> None:
        """Set the new version's share of the requests back to 0."""
        self._is_over = True

    def choose(self) -> bool:
        """Return whether the new version gets the next request.

        At a share of 10 %, it gets each tenth request.
        """
        self._sum += round(_HUNDREDTHS * self.share)
        if self._sum < _WHOLE:
            return False
        self._sum -= _WHOLE
        return True

    def record_old(self, took_s: float) -> None:
        """Record the response time of a request that the served version got."""
        self._old_times.append(took_s)

    def record_new(self, took_s: float, *, failed: bool = False, failed_again: bool = False) -> None:
        """Record the end of a request that the new version got. The share may then grow, or return to 0.

        took_s: seconds until the response. failed: whether the new version failed it, so that the served
        version ran it. failed_again: whether the served version failed it, too.
        """
        if self._is_over:
            return
        step, late = self.steps[-1], took_s > self._late_s
        step.requests += 1
        step.failed += failed
        step.late += late
        self._new_times.append(took_s)
        self._errors.count_request(changed=failed, noise=failed_again)
        self._lateness.count_request(changed=late, noise=self._was_late())
        self.fault = self._find_fault()
        if self.fault:
            self.stop()
        elif step.requests >= self._settings.requests:
            self.begin_step()
        elif step.requests % _RENEW_AFTER == 0:
            self._renew_late_s()

    def _renew_late_s(self) -> None:
        """Compute the response time above which a request is late, from the served version's latest times."""
        if len(self._old_times) >= MIN_TIMES:
            ordered = sorted(self._old_times)
            self._late_s = self._settings.latency_limit * ordered[len(ordered) * 95 // 100]

    def _was_late(self) -> bool:
        """Return whether a recorded request of the served version was late.

        Each call checks the next request.
        """
        if not self._old_times:
            return False
        return self._old_times[self._lateness.requests % len(self._old_times)] > self._late_s

    def _find_fault(self) -> str:
        """Return a text about the limit that the new version exceeds; empty if it exceeds none."""
        errors, lateness = self._errors, self._lateness
        if errors.verdict is Verdict.REFUSE:
            return (
                f"it failed {errors.changed} of {errors.requests} requests, and the served version "
                f"{errors.noise} of them; the limit is {errors.tolerance:.3g} of all"
            )
        if lateness.verdict is Verdict.REFUSE:
            return (
                f"{lateness.changed} of {lateness.requests} requests took more than "
                f"{1000 * self._late_s:.3g} ms, and {lateness.noise} of as many with the served version"
            )
        return ""

    def build_steps_report(self) -> dict[str, Any]:
        """Return the state of the canary as JSON values."""
        return {
            "share": self.share,
            "shares": self._settings.shares,
            "steps": [asdict(step) for step in self.steps],
            "latency_ms": {"old": summarise(self._old_times), "new": summarise(self._new_times)},
        }


def summarise(times_s: Sequence[float]) -> dict[str, float]:
    """Return percentiles of durations, converted from seconds to milliseconds; {} without durations."""
    ordered = sorted(times_s)
    if not ordered:
        return {}
    return {
        f"p{p}": round(1000 * ordered[min(len(ordered) - 1, len(ordered) * p // 100)], 3) for p in (50, 99)
    }
