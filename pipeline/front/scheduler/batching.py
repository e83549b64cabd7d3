"""The batching decision: when queued jobs leave, how many together, and the pace that it goes by.

Pure: no clock, no socket.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FAST_HANDOVER_S = 0.010  # below this, waiting for the front between two hand-overs is a visible loss
BATCHES_WHEN_FAST = 4
BATCHES_WHEN_SLOW = 2
LONG_HANDOVER_S = 0.5  # longer ones have few runs of the model: who comes meanwhile waits for the end
LEAST_RUNS = 2  # of a long one, so that what is told of its runs stays true
GATHER_SHARE = 0.5  # of a usual run: what an instance waits at most for the callers it has answered
GATHER_MOST_S = 0.005
REST_S = 0.006  # of a hand-over that is answered in part: behind a shorter rest the next one may wait

_SMOOTHING = 0.2  # weight of the latest hand-over in `Pace.usual_s`
_MEMORY = (
    0.95  # of the means of `Pace`: what counted before, after one more job: about twenty jobs are remembered
)
_LEAST_MEMORY = 0.7  # and three hand-overs at least, also where each has many jobs


@dataclass(frozen=True)
class BatchPolicy:
    """The settings of an Op that say when a hand-over leaves.

    batch_size: requests in a predictor batch. max_queue_delay_s: how long a partial one may wait.
    one_batch: a hand-over has no more than one, so that its time is that of each request in it.
    preferred: sizes that leave at once, ascending; a hand-over then is the largest of them that is there.
    """

    batch_size: int
    max_queue_delay_s: float = 0.0
    one_batch: bool = False
    preferred: tuple[int, ...] = ()

    @property
    def full(self) -> int:
        """Requests that leave without waiting for more."""
        return self.preferred[0] if self.preferred else self.batch_size


def ripe_in(waiting: int, oldest: float, policy: BatchPolicy, now: float) -> float:
    """Seconds until a hand-over may leave, for a queue delay that the user asks for; 0 means now."""
    if waiting >= policy.full:
        return 0.0
    return max(0.0, oldest + policy.max_queue_delay_s - now)


def gathered_in(
    waiting: int, answered: int, policy: BatchPolicy, idle_since: float, usual_s: float | None, now: float
) -> float:
    """Seconds that an instance waits for the callers it has just answered; 0 means not at all.

    Callers that ask again at once come back one by one. If the first left alone, the others would wait for
    its run, and batches would stay small for ever (docs/decisions/batching.md). So an instance that has
    answered k requests waits for as many, or for a full batch, but no longer than half a usual run. A caller
    that is alone, or finds an instance that was idle, never waits.
    """
    if usual_s is None or waiting >= min(answered, policy.full):
        return 0.0
    return max(0.0, idle_since + min(GATHER_SHARE * usual_s, GATHER_MOST_S) - now)


def handover_size(
    waiting: int, free_instances: int, policy: BatchPolicy, usual_s: float | None, most: float = math.inf
) -> int:
    """Jobs in the next hand-over: an even share, and at most a few predictor batches.

    Several batches' worth give the worker's plan lengths to choose from; a slow model gets fewer, so that the
    last request of a hand-over does not wait while another instance is idle.
    usual_s: what a hand-over took of late; None before the first. most: see `Pace.most_jobs`.
    """
    if policy.preferred:
        there = [size for size in policy.preferred if size <= waiting]
        return there[-1] if there else min(waiting, policy.batch_size)
    if policy.one_batch:
        batches = 1
    else:
        fast = usual_s is not None and usual_s < FAST_HANDOVER_S
        batches = BATCHES_WHEN_FAST if fast else BATCHES_WHEN_SLOW
    share = -(-waiting // max(1, free_instances))
    return max(1, math.floor(min(share, policy.batch_size * batches, most)))


def may_queue_behind(
    running: int, began: float, waiting: int, batch_size: int, usual_s: float | None, now: float
) -> bool:
    """Whether an instance that runs `running` jobs since `began` may be given its next hand-over already.

    It spares a fast model the wait for the front. Behind a slow or late run it would only bind requests to
    one instance that another could take earlier, and tear apart a batch that could still grow: so a full one
    must wait, and as many as are running.
    """
    fast = usual_s is not None and usual_s < FAST_HANDOVER_S and now - began < 2 * usual_s + 0.001
    return fast and waiting >= max(running, batch_size)


def may_follow(jobs: int, left: int, waiting: int, rest_s: float) -> bool:
    """Whether an instance that has answered a part of its hand-over may be given the next one already.

    Between two hand-overs it would do nothing until the front has passed on the answers and sent what waits.
    Most callers of the answered part are back by then, so the next one is not small; half as many as the
    running one has must wait. A hand-over of a single run is answered at its end: none follows it so
    (docs/decisions/batching.md).
    left: of its `jobs`, those that are not answered. rest_s: what they will take; below 0 they are late, and
    nobody is to wait behind a run that may hang.
    """
    return left < jobs and 2 * waiting >= jobs and abs(rest_s) <= REST_S


class Pace:
    """How long the hand-overs of an Op took of late, in seconds; 0 while there is no history.

    usual_s: of a hand-over, following the latest closely; None before the first. run_s: of a hand-over, on
    average. per_job_s, per_row_s: an instance's time for one job, and for one row of its request. These are
    means, so that they stay true where short and long runs alternate, and of few jobs, so that a flood, whose
    refusals take the workers' CPU and slow their runs within a tenth of a second, is not admitted by what
    runs took before.
    """

    def __init__(self) -> None:
        self.usual_s: float | None = None
        self.run_s = 0.0
        self.per_job_s = 0.0
        self.per_row_s = 0.0
        self._took_s = self._handovers = self._jobs = self._rows = 0.0
        self._jobs_a_run = math.inf

    @property
    def most_jobs(self) -> float:
        """Jobs of a hand-over that takes `LONG_HANDOVER_S`, or `LEAST_RUNS` runs where these are more.

        Infinite while the worker has not cut one into several runs: then the time need not go by the jobs.
        """
        if self._jobs_a_run == math.inf:
            return math.inf
        return max(LEAST_RUNS * self._jobs_a_run, LONG_HANDOVER_S / self.per_job_s)

    def note(self, took_s: float, jobs: int, runs: int = 0, rows: int = 0) -> None:
        """One more hand-over has ended.

        runs: of the model, one after the other; 0: not known. rows: of its requests; one each at least.
        """
        if runs > 1:
            known = self._jobs_a_run < math.inf
            change = jobs / runs - self._jobs_a_run
            self._jobs_a_run = self._jobs_a_run + _SMOOTHING * change if known else jobs / runs
        elif runs == 1 and self._jobs_a_run < jobs:
            self._jobs_a_run = jobs
        usual_s = self.usual_s
        self.usual_s = took_s if usual_s is None else usual_s + _SMOOTHING * (took_s - usual_s)
        memory = max(_LEAST_MEMORY, _MEMORY**jobs)
        self._took_s = self._took_s * memory + took_s
        self._handovers = self._handovers * memory + 1
        self._jobs = self._jobs * memory + jobs
        self.run_s = self._took_s / self._handovers
        self.per_job_s = self._took_s / self._jobs
        self._rows = self._rows * memory + max(jobs, rows)
        self.per_row_s = self._took_s / self._rows
