"""The queue in front of one Op: gathers jobs into hand-overs and gives each to an instance with room."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from operator import attrgetter

from pipeline.api.app import App
from pipeline.errors import DeadlineExceeded, NotReady, ServingError, text_of
from pipeline.front.metrics.figures import OpFigures
from pipeline.front.pool import occupancy
from pipeline.front.pool.in_flight import InFlight
from pipeline.front.pool.pace import Pace
from pipeline.front.pool.starts import Starts
from pipeline.front.pool.worker_instance import Instance
from pipeline.front.pool.worker_pool import WorkerPool
from pipeline.front.pool.worker_process import WorkerProcess, time_limits
from pipeline.front.scheduler.batching import (
    BatchPolicy,
    gathered_in,
    handover_size,
    may_queue_behind,
    ripe_in,
)
from pipeline.front.scheduler.dag_run import DagRun, Inputs
from pipeline.front.scheduler.fair_queue import FairQueue
from pipeline.front.scheduler.job import Job, given_back
from pipeline.front.scheduler.lost_jobs import refuse_blamed, tried_again
from pipeline.front.scheduler.versions import of_version
from pipeline.messages.messages import Reply

log = logging.getLogger(__name__)

_IDLE_SINCE = attrgetter("idle_since")
_numbers = itertools.count()


class Batcher:
    """Work-conserving: while jobs wait and an instance is idle, a hand-over leaves.

    A job that may have killed a worker is a suspect: it goes first, and alone into an idle process.
    on_pace: called when `pace` has changed.
    versions_service: the version of this Op's model is the service's.
    """

    def __init__(self, app: App, op: str, figures: OpFigures, starts: Starts, fair_queue: FairQueue) -> None:
        config = app.config.op[op]
        self.op = op
        self.pool = WorkerPool(app, op, self, self._dispatch_soon, starts)
        self.profiles = app.config.dag.use_profile
        self.pace = Pace()
        self.on_pace: Callable[[], None] = lambda: None
        self.versions_service = False
        self._names_version = bool(self.pool.plan.version)
        self._timeout_s = time_limits(config).call_s  # of one try
        self._policy = BatchPolicy(
            config.batch_size,
            config.auto_batching_timeout / 1000,
            one_batch=self._timeout_s < math.inf,
        )
        self._crash_retry = config.crash_retry
        self._stuck_after_s = (config.run_timeout or math.inf) / 4
        self._tries = max(1, config.retry)
        self._figures = figures
        self._fair_queue = fair_queue
        self._queue: list[tuple[int, int, int, Job]] = []  # priority, turn, number: the least goes first
        self._suspects: deque[Job] = deque()
        self._dispatching = False
        self._ripening: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Jobs in the queue, those nobody waits for any more included."""
        return len(self._queue) + len(self._suspects)

    @property
    def sound(self) -> int:
        """Instances that requests are well sent to."""
        if self.pool.in_crash_loop:
            return 0
        return occupancy.sound(self.pool.instances, self.pace, self._stuck_after_s)

    @property
    def idle(self) -> bool:
        """Whether a job that came now would be run at once."""
        return not self.waiting and any(i.has_place and not i.in_flight for i in self.pool.instances)

    def ahead(self, place: tuple[int, int] | None) -> int:
        """Jobs that are answered before one that comes now: those under way, and of the queue those before
        its place, which is its priority and the turn behind its own; None: behind them all."""
        queued = self.waiting if place is None else sum(entry < place for entry in self._queue)
        return occupancy.handed_over(self.pool.instances) + queued

    def wait_s(self, ahead: int) -> float:
        """Seconds until so many jobs are done, whatever is late now included."""
        instances = self.pool.instances
        run_s = ahead * self.pace.per_job_s / max(1, self.pool.ready)
        return run_s + occupancy.overdue_s(instances, self.pace)

    def last(self) -> Job | None:
        """The job in the queue that would be the last to run, of those that are still wanted."""
        last = max((entry for entry in self._queue if entry[-1].wanted), default=None)
        return None if last is None else last[-1]

    def drop(self, job: Job) -> None:
        """Take a job out of the queue, whoever waits for it."""
        self._queue = [entry for entry in self._queue if entry[-1] is not job]
        heapq.heapify(self._queue)

    def note_error(self, error: ServingError) -> None:
        """The Op has refused or failed a request."""
        self._figures.failed += 1
        self._figures.failures.note(error)

    def put(self, dag_run: DagRun, inputs: Inputs) -> None:
        """Queue an Op's share of a request. It leaves with others that arrive in this turn of the loop."""
        now, request, number = time.monotonic(), dag_run.request, next(_numbers)
        job = Job(dag_run, self.op, inputs, number, now, self._tries)
        heapq.heappush(self._queue, (request.priority, request.turn, number, job))
        if not self._dispatching:
            self._dispatch_soon()

    def _push_again(self, job: Job) -> None:
        if job.suspect:
            self._suspects.append(job)
        else:
            request = job.dag_run.request
            heapq.heappush(self._queue, (request.priority, request.turn, job.number, job))
        self._dispatch_soon()

    def _dispatch_soon(self) -> None:
        if not self._dispatching:
            self._dispatching = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatching = False
        if self.pool.given_up and not self.pool.ready:
            self._refuse_all()
            return
        now = time.monotonic()
        if self._suspects and not self._hand_over_suspects(now):
            return  # what else waits would keep the processes from ever being idle
        while self._queue:
            self._drop_unwanted()
            free = self._free(now) if self._queue else []
            if not free:
                return
            self._hand_over(free[0], len(free), now)

    def _refuse_all(self) -> None:
        """The service ends, but not before everyone is told."""
        jobs = [*self._suspects, *(entry[-1] for entry in self._queue)]
        self._suspects.clear()
        self._queue.clear()
        for job in jobs:
            job.fail(NotReady(f"Op {self.op} has no worker left and none can be started: the service ends"))

    def _drop_unwanted(self) -> None:
        while self._queue and not self._queue[0][-1].wanted:
            heapq.heappop(self._queue)

    def _free(self, now: float) -> list[Instance]:
        """Instances that may be given a hand-over now; the one used last is first, its caches are warm."""
        ripe: list[Instance] = []
        busy: list[Instance] = []
        shortest_s = math.inf  # until an idle instance may be given one
        for instance in self.pool.instances:
            if not instance.has_place:
                continue
            if instance.in_flight:
                busy.append(instance)
                continue
            wait_s = self._wait(instance, now)
            shortest_s = min(shortest_s, wait_s)
            if wait_s <= 0:
                ripe.append(instance)
        if shortest_s == math.inf:
            return [i for i in busy if self._may_queue_behind(i.in_flight[0], now)]
        if not ripe and self._ripening is None:
            self._ripening = asyncio.get_running_loop().call_later(shortest_s, self._ripen)
        if len(ripe) > 1:
            ripe.sort(key=_IDLE_SINCE, reverse=True)
        return ripe

    def _wait(self, instance: Instance, now: float) -> float:
        """Seconds until a partial hand-over may leave for this idle instance."""
        waiting = len(self._queue)
        if self._policy.max_queue_delay_s:
            return ripe_in(waiting, self._queue[0][-1].queued_at, self._policy, now)
        answered, idle_since = instance.answered, instance.idle_since
        return gathered_in(waiting, answered, self._policy, idle_since, self.pace.usual_s, now)

    def _may_queue_behind(self, running: InFlight, now: float) -> bool:
        size, waiting = self._policy.batch_size, len(self._queue)
        return may_queue_behind(len(running.jobs), running.began, waiting, size, self.pace.usual_s, now)

    def _ripen(self) -> None:
        self._ripening = None
        self._dispatch()

    def _hand_over_suspects(self, now: float) -> bool:
        """Give each suspect a process of its own for its run; false when one has to wait for that."""
        while self._suspects:
            job = self._suspects[0]
            if job.wanted:
                process = next((p for p in self.pool.processes if p.idle), None)
                if process is None:
                    return False
                self._send(process.instances[0], [job], now)
                process.reserved = bool(process.instances[0].in_flight)
            self._suspects.popleft()
        return True

    def _hand_over(self, instance: Instance, free: int, now: float) -> None:
        jobs = self._take(handover_size(len(self._queue), free, self._policy, self.pace.usual_s))
        if jobs:
            self._send(instance, jobs, now)

    def _send(self, instance: Instance, jobs: list[Job], now: float) -> None:
        if self._names_version:
            jobs = of_version(instance.process.version, jobs, is_services=self.versions_service)
            if not jobs:
                return
        self._figures.queue_s.note_all([now - job.queued_at for job in jobs])
        try:
            instance.hand_over(jobs)
        except Exception as exc:  # a fault of ours: better told to these requests than waited out by them
            log.exception("Op %s: a hand-over of %d requests can't be sent", self.op, len(jobs))
            for job in jobs:
                job.fail(ServingError(f"the request can't be handed to Op {self.op}: {text_of(exc)}"))

    def _take(self, size: int) -> list[Job]:
        """Take the next jobs that are still wanted."""
        jobs: list[Job] = []
        while self._queue and len(jobs) < size:
            job = heapq.heappop(self._queue)[-1]
            if job.wanted:
                jobs.append(job)
        if jobs:
            self._fair_queue.hand_over(jobs[-1].dag_run)
        return jobs

    # What the instances report:

    def became_ready(self, process: WorkerProcess) -> None:
        self.pool.became_ready(process)
        self._dispatch_soon()

    def replying(self, handover: InFlight, reply: Reply) -> None:
        """Note with each request what its share took, before it is settled: its answer tells."""
        timings = reply.timings
        if timings.preprocess_ns:  # told in the first reply; in each where requests are run one by one
            handover.preprocess_ns = timings.preprocess_ns
        spent_ns = handover.preprocess_ns, timings.process_ns, timings.postprocess_ns
        answered = [job for settled in reply.settled if (job := handover.jobs[settled.index]) is not None]
        for job in given_back(answered):
            if job.dag_run.request.timings is not None:
                queue_s = max(0.0, handover.began - job.queued_at)
                job.dag_run.request.timings.note(self.op, queue_s, *(ns * 1e-9 for ns in spent_ns))

    def replied(self, instance: Instance, handover: InFlight, reply: Reply) -> None:
        self._figures.note_run(reply.timings, len(reply.settled))
        instance.served += len(reply.settled)
        if not reply.last:
            return
        instance.idle_since = time.monotonic()
        instance.answered = 0 if handover.abandoned else len(handover.jobs)
        if not handover.abandoned:
            self._note_pace(instance.idle_since - handover.began, handover)
        self._dispatch_soon()

    def timed_out(self, instance: Instance, handover: InFlight) -> None:
        """A call is over the Op's timeout. It is abandoned: its requests are tried again, or told so."""
        self._figures.abandoned += 1
        self._note_pace(self._timeout_s, handover)
        now = time.monotonic()
        for job in given_back(handover.open_jobs()):
            if not job.wanted:
                continue
            if job.tries_left > 1:
                self._push_again(job.next_try(now))
            else:
                job.fail(self._timeout_error())
        for job in given_back(instance.take_back()):
            self._push_again(job)
        self.pool.abandoned.set()

    def _timeout_error(self) -> DeadlineExceeded:
        tries = f" in each of {self._tries} tries" if self._tries > 1 else ""
        return DeadlineExceeded(
            f"[{self.op}] took more than op.{self.op}.timeout ({self._timeout_s * 1000:g} ms){tries}: the "
            "call is abandoned, and its instance is replaced unless the call ends before that"
        )

    def _note_pace(self, took_s: float, handover: InFlight) -> None:
        self.pace.note(took_s, len(handover.jobs))
        self.on_pace()

    def lost(self, process: WorkerProcess) -> None:
        for job in tried_again(process, self._crash_retry):
            self._figures.retried += 1
            self._push_again(job)
        self._dispatch_soon()

    def died(self, process: WorkerProcess) -> None:
        refuse_blamed(process)
        self.pool.died(process)
        self._dispatch_soon()
