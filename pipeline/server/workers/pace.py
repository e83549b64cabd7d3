"""Pace: what the hand-overs of an Op took of late."""

from __future__ import annotations

_SMOOTHING = 0.2
_MEMORY = 0.95  # what a hand-over still counts after the next one: about twenty are remembered


class Pace:
    """Durations in seconds, 0 while there is no history.

    usual_s: of a hand-over, following the latest closely; None before the first. run_s: of a hand-over, on
    average. per_job_s: an instance's time for one job. Both averages weigh every job alike, so that they stay
    true where short and long runs alternate.
    """

    def __init__(self) -> None:
        self.usual_s: float | None = None
        self.run_s = 0.0
        self.per_job_s = 0.0
        self._took_s = self._handovers = self._jobs = 0.0

    def note(self, took_s: float, jobs: int) -> None:
        """One more hand-over has ended."""
        usual_s = self.usual_s
        self.usual_s = took_s if usual_s is None else usual_s + _SMOOTHING * (took_s - usual_s)
        self._took_s = self._took_s * _MEMORY + took_s
        self._handovers = self._handovers * _MEMORY + 1
        self._jobs = self._jobs * _MEMORY + jobs
        self.run_s = self._took_s / self._handovers
        self.per_job_s = self._took_s / self._jobs
