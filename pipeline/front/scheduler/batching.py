"""The batching decision: when queued tasks leave, how many together, and the pace that it goes by.

Pure: no clock, no socket.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.front.dag_run import Client

FAST_DISPATCH_S = 0.010  # below this, waiting for the front between two dispatches is a visible loss
BATCHES_WHEN_FAST = 4
BATCHES_WHEN_SLOW = 2
SLOW_DISPATCH_S = 0.5  # above this, send fewer batches per dispatch so that new requests wait less
MIN_RUNS = 2  # minimum of runs in a slow dispatch: fewer would hide how many tasks share a run
GATHER_SHARE = 0.5  # of a usual run: maximum wait of an idle instance for its previous callers
GATHER_MOST_S = 0.005
REST_S = 0.006  # of a dispatch that is answered in part: behind a shorter rest the next one may wait

_SMOOTHING = 0.2  # weight of the latest dispatch in `Pace.usual_s`
_MEMORY = 0.95  # weight of the earlier tasks in the means of `Pace`, for each further task
_MIN_MEMORY = 0.7  # the same for a dispatch with many tasks: about three dispatches count


@dataclass(frozen=True)
class BatchPolicy:
    """Settings of an Op that decide when a dispatch leaves."""

    batch_size: int  # requests in a predictor batch
    max_queue_delay_s: float = 0.0  # how long a partial batch may wait
    # a dispatch has one batch at most, so that its time is that of each request in it
    one_batch: bool = False
    # sizes that leave at once, ascending; a dispatch has the largest that is filled
    preferred: tuple[int, ...] = ()

    @property
    def full(self) -> int:
        """Requests that leave without waiting for more."""
        return self.preferred[0] if self.preferred else self.batch_size


def ripe_in(waiting: int, oldest: float, policy: BatchPolicy, now: float) -> float:
    """Return the seconds until a dispatch may leave under a configured queue delay; 0 means now."""
    if waiting >= policy.full:
        return 0.0
    return max(0.0, oldest + policy.max_queue_delay_s - now)


def gathered_in(
    waiting: int, answered: int, policy: BatchPolicy, idle_since: float, usual_s: float | None, now: float
) -> float:
    """Return how long an idle instance waits for its previous callers, in seconds.

    Callers that send their next request at once return one by one. If the first request ran alone, the others
    would wait for its run, and batches would stay small (docs/decisions/batching.md). An instance that has
    answered k requests therefore waits for k requests or a full batch, for half a usual run at maximum. A
    single caller never waits, and neither does a request that finds an instance idle for longer.
    """
    if usual_s is None or waiting >= min(answered, policy.full):
        return 0.0
    return max(0.0, idle_since + min(GATHER_SHARE * usual_s, GATHER_MOST_S) - now)


def dispatch_size(
    waiting: int, free_instances: int, policy: BatchPolicy, usual_s: float | None, max_tasks: float = math.inf
) -> int:
    """Return the number of tasks in the next dispatch: an even share, limited to a few predictor batches.

    With several batches' worth the worker's plan can choose among lengths. A slow model gets fewer, so that
    the last request of a dispatch does not wait while another instance is idle.

    usual_s: time of recent dispatches; None before the first. max_tasks: see `Pace.most_tasks`.
    """
    if policy.preferred:
        sizes = [size for size in policy.preferred if size <= waiting]
        return sizes[-1] if sizes else min(waiting, policy.batch_size)
    if policy.one_batch:
        batches = 1
    else:
        fast = usual_s is not None and usual_s < FAST_DISPATCH_S
        batches = BATCHES_WHEN_FAST if fast else BATCHES_WHEN_SLOW
    share = -(-waiting // max(1, free_instances))
    return max(1, math.floor(min(share, policy.batch_size * batches, max_tasks)))


def may_queue_behind(
    running: int, began: float, waiting: int, batch_size: int, usual_s: float | None, now: float
) -> bool:
    """Return whether an instance that runs `running` tasks since `began` may get its next dispatch already.

    It spares a fast model the wait for the front. Behind a slow or late run it would only bind requests to
    one instance, and split a batch that could still grow. So a full batch must wait, and as many tasks as are
    running.
    """
    fast = usual_s is not None and usual_s < FAST_DISPATCH_S and now - began < 2 * usual_s + 0.001
    return fast and waiting >= max(running, batch_size)


def may_follow(tasks: int, open_tasks: int, waiting: int, rest_s: float) -> bool:
    """Return whether an instance that has answered a part of its dispatch may get the next one already.

    Between two dispatches the instance would be idle until the front has sent answers and tasks. Most callers
    of the answered part are back by then, so the next dispatch is not small: half as many tasks must wait. A
    dispatch of a single run is answered at its end, so none follows it (docs/decisions/batching.md).

    open_tasks: unanswered tasks among its `tasks`. rest_s: their expected time. Below 0 they are late, and no
    request is to wait behind a run that may hang.
    """
    return open_tasks < tasks and 2 * waiting >= tasks and abs(rest_s) <= REST_S


class Pace:
    """Times of an Op's recent dispatches, in seconds; 0 while there is no history.

    usual_s: time of a dispatch, which follows the latest ones closely; None before the first. run_s: mean
    time of a dispatch. per_task_s, per_row_s: mean time of an instance for one task, and for one row.

    Means stay true where short and long runs alternate. They are of few tasks: a flood slows runs within a
    tenth of a second, because its refusals take CPU, and must not be admitted by older times.
    """

    def __init__(self) -> None:
        self.usual_s: float | None = None
        self.run_s = 0.0
        self.per_task_s = 0.0
        self.per_row_s = 0.0
        self._took_s = self._dispatches = self._tasks = self._rows = 0.0
        self._tasks_a_run = math.inf

    @property
    def most_tasks(self) -> float:
        """Return the tasks of a dispatch that takes `SLOW_DISPATCH_S`, and at least `MIN_RUNS` runs.

        Infinite until a worker has cut a dispatch into several runs: time may not depend on tasks before.
        """
        if self._tasks_a_run == math.inf:
            return math.inf
        return max(MIN_RUNS * self._tasks_a_run, SLOW_DISPATCH_S / self.per_task_s)

    def record(self, took_s: float, tasks: int, runs: int = 0, rows: int = 0) -> None:
        """Record a dispatch that has ended.

        runs: sequential runs of the model; 0 if unknown. rows: of its requests, at least one for each.
        """
        if runs > 1:
            is_known = self._tasks_a_run < math.inf
            change = tasks / runs - self._tasks_a_run
            self._tasks_a_run = self._tasks_a_run + _SMOOTHING * change if is_known else tasks / runs
        elif runs == 1 and self._tasks_a_run < tasks:
            self._tasks_a_run = tasks
        usual_s = self.usual_s
        self.usual_s = took_s if usual_s is None else usual_s + _SMOOTHING * (took_s - usual_s)
        memory = max(_MIN_MEMORY, _MEMORY**tasks)
        self._took_s = self._took_s * memory + took_s
        self._dispatches = self._dispatches * memory + 1
        self._tasks = self._tasks * memory + tasks
        self.run_s = self._took_s / self._dispatches
        self.per_task_s = self._took_s / self._tasks
        self._rows = self._rows * memory + max(tasks, rows)
        self.per_row_s = self._took_s / self._rows


class FairQueue:
    """Fair order of requests: while several clients wait, each has one request in every turn.

    A client's next request stands one turn behind its last, and never behind the turn that is being served. A
    client with few requests goes ahead of the queue of a flooding client. A single client is served in order
    of arrival.
    """

    __slots__ = ("clients", "latest", "now")

    def __init__(self) -> None:
        self.now = 0  # turn of the latest dispatch
        self.latest = 0  # turn of the last request in the queue
        self.clients = 0  # with pending requests

    def next(self, client: Client) -> int:
        """Return the turn that the next request of this client gets.

        Turns of requests that were cancelled in the queue do not count once the client has nothing pending.
        """
        return (client.turn if client.pending and client.turn > self.now else self.now) + 1

    def admit(self, client: Client) -> int:
        """Count a pending request of this client. Return its turn."""
        turn = client.turn = self.next(client)
        if turn > self.latest:
            self.latest = turn
        if not client.pending:
            self.clients += 1
        client.pending += 1
        return turn

    def serve(self, turn: int) -> None:
        """Advance to the turn of a dispatched request."""
        if turn > self.now:
            self.now = turn

    def end(self, client: Client) -> None:
        """Count a request of this client that has ended."""
        client.pending -= 1
        if not client.pending:
            self.clients -= 1
