"""Pace: what the hand-overs of an Op took of late."""

from __future__ import annotations

_SMOOTHING = 0.2
_MEMORY = 0.95  # what counted before, after one more job: about twenty jobs are remembered
_LEAST_MEMORY = 0.7  # and three hand-overs at least, also where each has many jobs


class Pace:
    """Durations in seconds, 0 while there is no history.

    usual_s: of a hand-over, following the latest closely; None before the first. run_s: of a hand-over, on
    average. per_job_s: an instance's time for one job. Both are means, so that they stay true where short and
    long runs alternate, and of few jobs, so that a flood, whose refusals take the workers' CPU and slow their
    runs within a tenth of a second, is not admitted by what runs took before.
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
        memory = max(_LEAST_MEMORY, _MEMORY**jobs)
        self._took_s = self._took_s * memory + took_s
        self._handovers = self._handovers * memory + 1
        self._jobs = self._jobs * memory + jobs
        self.run_s = self._took_s / self._handovers
        self.per_job_s = self._took_s / self._jobs
