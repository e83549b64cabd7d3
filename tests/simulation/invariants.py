"""Invariants: what must hold of every request, worker and queue, whatever happens."""

from __future__ import annotations

import gc
import logging
import math
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.errors import ServingError
from pipeline.front.dag_run import Answer, Task
from pipeline.front.pool.worker_pool import WorkerPool
from pipeline.front.pool.worker_process import Instance
from pipeline.front.scheduler.batcher import Batcher
from pipeline.front.scheduler.worker_faults import LONE_DEATHS, STUCK_RUNS, UNSEEN_DEATHS
from pipeline.messages.frames import arena_fds
from pipeline.models.sequence_tensors import END, START
from tests.simulation.clients import FILLS, Death, Order, Sent
from tests.simulation.workers import REFUSAL, Worker, answer_body, history_path

if TYPE_CHECKING:
    from tests.simulation.run import Run

LOOK_EVERY_S = 0.25
TICK_S = 0.05  # a deadline is kept to this
IDLE_WITHIN_S = 0.5  # beside its queue delay a request waits no longer for an instance that is idle
MOVED_WITHIN_S = 2.5  # from behind a long run to an idle instance
RESCUED_WITHIN_S = 15.0  # from an instance that hangs to an idle one
UNSTOPPED_WITHIN_S = 4.0  # from one whose process is stopped
FREED_WITHIN_S = 1.0  # from an answer until the inputs of its request are freed
FAIR_TURNS = 3  # requests of another client that may go ahead of the only one of a client
STOPPED_WITHIN_S = 6.0  # the grace of workers, and what a killed one takes to end
UNSEEN_S = 0.01  # until the front has read a message
MAX_FAILED_STARTS = 3


class Referee:
    """Collects the violations of a run."""

    def __init__(self, run: Run) -> None:
        self.violations: list[str] = []
        self._run = run
        self._sent_in_order: list[Sent] = []  # for a model with `preserve_ordering`
        self._freed_by: list[tuple[float, Sent]] = []
        self._waits: dict[str, tuple[int, float]] = {}  # by Op: the first in its queue, and since when
        self._waiting: list[Sent] = []
        self._arenas_before = set(arena_fds())  # of runs that were broken off
        self.failed_starts: Counter[str] = Counter()
        self._histories: dict[str, list[int]] = {}  # by sequence, the requests that have made its state

    def report(self, violation: str) -> None:
        self._run.note(f"VIOLATION {violation}")
        self.violations.append(f"{self._run.now:.6f} {violation}")

    # Requests:

    def sent(self, sent: Sent) -> None:
        self._run.note(f"request {sent.number} admitted: {sent.order.kind}, until {sent.deadline:.3f}")
        scenario = self._run.scenario
        if scenario.shape == "single" and not (scenario.app.sequences or sent.outcome):
            self._waiting.append(sent)

    def refused(self, order: Order, error: ServingError) -> None:
        """Check a refusal at admission."""
        run, kind = self._run, type(error).__name__
        self._run.note(f"request refused: {kind}: {error.message}")
        if run.quiet:
            self.report(f"a request without any fault around is refused: {kind}: {error.message}")
        elif kind == "NotReady" and not (run.unloading or run.gave_up or run.stopping):
            self.report(f"a request is refused while the service is ready: {error.message}")
        elif kind == "InvalidInput" and run.scenario.app.sequences and not order.flags & START:
            return  # the sequence has not started, or has ended
        elif kind not in ("NotReady", "Overloaded", "DeadlineExceeded"):
            self.report(f"admission refuses with {kind}: {error.message}")

    def ended(self, sent: Sent, answer: Answer | None) -> None:
        """Check what a request is answered with."""
        run = self._run
        run.note(f"request {sent.number} ends: {sent.outcome} {_text(answer)}")
        if sent.ended_at != run.now:
            self.report(f"request {sent.number} ends again")
        sent.ends += 1
        if sent.ends > 1:
            self.report(f"request {sent.number} ends {sent.ends} times")
        if run.now > sent.deadline + TICK_S:
            self.report(f"request {sent.number} ends {run.now - sent.deadline:.3f} s after its deadline")
        if answer is None:
            return
        if isinstance(answer, ServingError):
            self._check_error(sent, answer)
        else:
            self._check_body(sent, b"".join(map(bytes, answer)))
        if sent.array is not None:
            self._freed_by.append((run.now + FREED_WITHIN_S, sent))
        if not isinstance(answer, ServingError) or REFUSAL in answer.message:
            self._check_order(sent)

    def _check_body(self, sent: Sent, body: bytes) -> None:
        run, order = self._run, sent.order
        fill = sent.number % FILLS if order.array_bytes else -1
        paths = [self._follow_sequence(sent)] if run.scenario.app.sequences else run.paths
        expected = [answer_body(sent.number, path, fill, order.size) for path in paths]
        if body not in expected:
            self.report(f"request {sent.number} is answered with {body[:60]!r}, not {expected[0][:60]!r}")
        elif order.kind in ("poison", "hang", "hang_thread", "error") and run.scenario.shape != "first":
            self.report(f"request {sent.number} can't be answered: its kind is {order.kind}")

    def _follow_sequence(self, sent: Sent) -> str:
        """Return the path of an answer from the requests of the sequence that were answered before."""
        order = sent.order
        history = [] if order.flags & START else self._histories.get(order.sequence, [])
        path = history_path(self._run.ops[0], history)
        self._histories[order.sequence] = [] if order.flags & END else [*history, sent.number]
        return path

    def _check_error(self, sent: Sent, error: ServingError) -> None:
        kind, order = sent.outcome, sent.order
        check = {
            "DeadlineExceeded": self._check_lateness,
            "PoisonRequest": self._check_blame,
            "WorkerLost": self._check_loss,
            "Overloaded": self._check_eviction,
            "NotReady": self._check_unready,
        }.get(kind)
        if check is not None:
            check(sent, error)
        elif kind == "InvalidInput" and "must specify the START flag" in error.message and order.sequence:
            if order.flags & START or self._histories.get(order.sequence):
                self.report(f"request {sent.number} is refused in a live sequence: {error.message}")
        elif not (order.kind == "error" and REFUSAL in error.message):
            self.report(f"request {sent.number} ({order.kind}) is refused with {kind}: {error.message}")

    def _check_lateness(self, sent: Sent, error: ServingError) -> None:
        run = self._run
        if run.now >= sent.deadline - TICK_S:
            if run.quiet:
                self.report(f"request {sent.number} is late without any fault around")
            return
        config = run.scenario.app.config
        if "more than op." in error.message and any(op.timeout > 0 for op in config.op.values()):
            return
        policy = run.scenario.batching.get("default_queue_policy", {})
        limits = [policy.get("default_timeout_microseconds", 0) / 1e6 or math.inf]
        if policy.get("allow_timeout_override") and sent.order.queue_timeout_us:
            limits.append(sent.order.queue_timeout_us / 1e6)
        if run.now - sent.at < min(limits) - 1e-6:
            self.report(f"request {sent.number} is refused before its time is over: {error.message}")
        elif sent.handed_over:
            self.report(f"request {sent.number} had left the queue and is refused by the queue's policy")

    def _check_blame(self, sent: Sent, error: ServingError) -> None:
        alone = Counter(death.op for death in sent.deaths if death.begun and death.alone)
        if not self._has_unseen_deaths(sent) and max(alone.values(), default=0) < LONE_DEATHS:
            self.report(
                f"request {sent.number} ({sent.order.kind}) is blamed, but not for runs alone: {sent.deaths}"
            )

    @staticmethod
    def _has_unseen_deaths(sent: Sent) -> bool:
        """Return whether workers died so often before they began with a request that it counts as begun."""
        return sum(not death.begun for death in sent.deaths) > UNSEEN_DEATHS

    def _check_loss(self, sent: Sent, error: ServingError) -> None:
        if all(op.crash_retry for op in self._run.scenario.app.config.op.values()):
            self.report(f"request {sent.number} is not tried again: {error.message}")
        elif not any(death.begun for death in sent.deaths) and not self._has_unseen_deaths(sent):
            self.report(
                f"request {sent.number} is refused for a death that was none of its own: {error.message}"
            )

    def _check_eviction(self, sent: Sent, error: ServingError) -> None:
        config = self._run.scenario.app.config.dag
        if "max_queue_size" in error.message:
            if "max_queue_size" not in self._run.scenario.batching.get("default_queue_policy", {}):
                self.report(
                    f"request {sent.number} is refused for a policy that there is not: {error.message}"
                )
        elif config.max_pending_requests >= 1000:
            self.report(f"request {sent.number} is evicted: {error.message}")

    def _check_unready(self, sent: Sent, error: ServingError) -> None:
        if not self._run.gave_up:
            self.report(f"request {sent.number} was admitted and is refused: {error.message}")

    def _check_order(self, sent: Sent) -> None:
        """Check that answers come in the order in which requests left the queue."""
        if sent not in self._sent_in_order:
            return
        for before in self._sent_in_order:
            if before is sent:
                break
            if not before.outcome:
                self.report(f"request {sent.number} is answered before request {before.number}")
        self._sent_in_order = [other for other in self._sent_in_order if not other.outcome]

    # Workers:

    def began(self, worker: Worker, requests: list[int]) -> None:
        run = self._run
        run.note(f"worker {worker.name} begins {requests}")
        for number in requests:
            sent = run.clients.requests[number]
            times = sent.begun[worker.op] = sent.begun.get(worker.op, 0) + 1
            section, dag = run.scenario.app.config.op[worker.op], run.scenario.app.config.dag
            allowed = max(1, section.retry) * dag.retry
            if (
                section.crash_retry
            ):  # after a death, and elsewhere where its run hangs or its process is stopped
                allowed += 1 + LONE_DEATHS + run.kernel.stops
            if times > allowed:
                self.report(f"request {number} is run {times} times by Op {worker.op}, {allowed} allowed")

    def died(self, worker: Worker) -> None:
        run = self._run
        run.note(f"worker {worker.name} dies: {worker.cause} {worker.process.code}")
        # The front may not have read the message of a worker that dies as soon as it is ready.
        unseen = not worker.ready or run.now - worker.ready_at < UNSEEN_S
        if unseen and not run.stopping:
            self.failed_starts[worker.op] += 1
        for requests, alone in worker.begun():
            for number in requests:
                if sent := run.clients.requests.get(number):
                    sent.deaths.append(Death(worker.op, True, alone, worker.cause))

    def lost(self, op: str, tasks: list[Task]) -> None:
        """Note the requests that a dead worker had not begun."""
        for task in tasks:
            sent = self._run.clients.requests[task.dag_run.request.log_id]
            sent.deaths.append(Death(op, False, False, "queued"))

    def handed_over(self, instance: Instance, tasks: list[Task]) -> None:
        """Check the order of what leaves the queue."""
        run = self._run
        numbers = [task.dag_run.request.log_id for task in tasks]
        run.note(f"instance {instance.op}.{instance.number} is sent {numbers}")
        batch = [run.clients.requests[number] for number in numbers]
        is_large = any(sent.order.array_bytes > run.scenario.lone_bytes for sent in batch)
        if len(batch) > 1 and is_large and not run.scenario.app.sequences:
            self.report(f"a request with large inputs is sent with others: {numbers}")
        fresh = [sent for sent in batch if not sent.handed_over]
        for sent in fresh:
            sent.handed_over = True
        if run.scenario.batching.get("preserve_ordering"):
            self._sent_in_order += fresh
        self._check_fairness(fresh)
        self._check_priorities(fresh)

    def _check_fairness(self, batch: list[Sent]) -> None:
        self._waiting = [sent for sent in self._waiting if not sent.handed_over and not sent.outcome]
        if self._run.has_priorities or "default_queue_policy" in self._run.scenario.batching:
            return
        for waiting in self._waiting:
            if not waiting.alone_of_client:
                continue
            for sent in batch:
                if sent.client is not waiting.client:
                    ahead = waiting.overtaken_by[sent.client] = waiting.overtaken_by.get(sent.client, 0) + 1
                    if ahead > FAIR_TURNS:
                        self.report(
                            f"request {waiting.number} waits for {ahead} requests of one other client"
                        )

    def _check_priorities(self, batch: list[Sent]) -> None:
        """Check that nobody waits behind a request of lower priority."""
        last = max((sent.order.priority for sent in batch), default=0)
        overtaken = [
            waiting.number
            for waiting in self._waiting
            if waiting.order.priority < last and not waiting.outcome and not waiting.handed_over
        ]
        held = self._numbers_held() if overtaken else set()  # others are refused in this very moment
        for number in overtaken:
            if number in held:
                self.report(f"request {number} waits behind one of lower priority")

    # At regular times:

    def look(self) -> None:
        """Check queues, instances and counters as they are now."""
        run = self._run
        self._check_counters()
        for op, batcher in run.batchers.items():
            idle = [i for i in batcher.pool.instances if i.has_place and not i.in_flight and run.healthy(i)]
            self._check_queue(op, batcher, idle)
            self._check_stuck(batcher.pool, idle, batcher.pace.run_s)
        self._check_memory()
        held = self._numbers_held()
        running = {run.clients.requests[number].order.sequence for number in held} - {""}
        for sent in run.clients.open.values():
            waits_for_turn = sent.order.sequence in running
            if sent.number not in held and not waits_for_turn and sent.at < run.now:  # not refused just now
                self.report(f"request {sent.number} is open, and nobody works on it")
            if run.now > sent.deadline + TICK_S:
                self.report(
                    f"request {sent.number} is open {run.now - sent.deadline:.3f} s after its deadline"
                )

    def _check_counters(self) -> None:
        run = self._run
        pending = len(run.clients.open)
        if run.scheduler.pending != pending:
            self.report(f"the scheduler counts {run.scheduler.pending} requests, {pending} are open")
        by_client = Counter(id(sent.client) for sent in run.clients.open.values())
        clients = {id(sent.client): sent.client for sent in run.clients.requests.values()}
        wrong = [c.pending for key, c in clients.items() if c.pending != by_client[key]]
        if wrong:
            self.report(f"clients are counted with {wrong} pending requests, which they have not")
        if run.fair_queue.clients != len(by_client):
            self.report(f"the fair queue counts {run.fair_queue.clients} clients, there are {len(by_client)}")

    def _check_queue(self, op: str, batcher: Batcher, idle: list[Instance]) -> None:
        """Check that no request waits for long while an instance is idle."""
        first = next((task for task in batcher._suspects if task.wanted), None)
        if first is not None:
            possible = any(
                p.idle and all(map(self._run.healthy, p.instances)) for p in batcher.pool.processes
            )
        else:
            first = next((task for task in queued(batcher) if task.wanted), None)
            possible = bool(idle)
        limit_s = IDLE_WITHIN_S + self._run.scenario.app.config.op[op].auto_batching_timeout / 1000
        number, since = self._waits.get(op, (-1, 0.0))
        if first is None or not possible:
            self._waits.pop(op, None)
        elif number != first.number:
            self._waits[op] = first.number, self._run.now
        elif self._run.now - since > limit_s:
            self.report(f"Op {op}: a request waits while an instance is idle for over {limit_s:g} s")

    def _check_stuck(self, pool: WorkerPool, idle: list[Instance], run_s: float) -> None:
        """Check that requests do not stay with an instance that is stuck while another one is idle."""
        run, op = self._run, self._run.scenario.app.config.op[pool.op]
        for instance in (i for process in pool._alive() for i in process.instances):
            for age, dispatch in enumerate(instance.in_flight):
                for task in dispatch.open_tasks():
                    sent = run.clients.requests[task.dag_run.request.log_id]
                    if age and instance.abandoned is not None and task.wanted:
                        self.report(f"request {sent.number} stays behind a call that nobody waits for")
                    stuck = not run.healthy(instance)
                    if not task.wanted or task.moved or not idle or not sent.good or not (stuck or age):
                        sent.movable_since = math.inf
                        continue
                    sent.movable_since = min(sent.movable_since, run.now)
                    stuck_s = run.now - sent.movable_since
                    stopped_since = run.stopped_since(instance)
                    is_late = stuck_s > (MOVED_WITHIN_S if age else RESCUED_WITHIN_S + STUCK_RUNS * run_s)
                    if not age and stopped_since is not None:  # it may have hung before
                        is_late |= min(stuck_s, run.now - stopped_since) > UNSTOPPED_WITHIN_S
                    if not age and (run.spins(instance) or not op.crash_retry):
                        continue  # a run that works is waited for, and must not be begun twice
                    if is_late:
                        self.report(
                            f"request {sent.number} is stuck at instance {pool.op}.{instance.number} for "
                            f"{stuck_s:.1f} s while another one is idle"
                        )

    def _check_memory(self) -> None:
        """Check that the inputs of answered requests are freed."""
        now = self._run.now
        due = [
            sent
            for at, sent in self._freed_by
            if at <= now and sent.array is not None and sent.array() is not None
        ]
        self._freed_by = [(at, sent) for at, sent in self._freed_by if at > now]
        held = self._numbers_held() if due else set()
        for sent in due:
            if sent.number in held:
                self._freed_by.append((now + FREED_WITHIN_S, sent))
            else:
                self._check_freed(sent)

    def _check_freed(self, sent: Sent) -> None:
        if sent.array is not None and sent.array() is not None:
            gc.collect()
        if sent.array is not None and sent.array() is not None:
            self.report(
                f"request {sent.number} has ended {self._run.now - sent.ended_at:.1f} s ago, its inputs live"
            )

    def _numbers_held(self) -> set[int]:
        """Return the requests that a queue, a dispatch or the order of answers still has."""
        tasks: list[Any] = []
        for batcher in self._run.all_batchers:
            tasks += queued(batcher)
            tasks += batcher._suspects
            if batcher._in_order is not None:
                tasks += batcher._in_order._under_way.values()
            for process in batcher.pool._alive():
                tasks += process.refused  # until it is known how it died
                tasks += [task for i in process.instances for h in i.in_flight for task in h.open_tasks()]
        return {task.dag_run.request.log_id for task in tasks}

    # At the end:

    def check_quiet(self) -> None:
        """Check that nothing is left once all requests are answered and nothing was wrong for a while."""
        run = self._run
        for batcher in run.batchers.values():
            if batcher.waiting:
                self.report(f"Op {batcher.op}: {batcher.waiting} tasks are queued, and no request is open")
            if any(instance.in_flight for instance in batcher.pool.instances):
                self.report(f"Op {batcher.op}: dispatches are under way, and no request is open")
            order = batcher._in_order
            if order is not None and (order._under_way or order._settled):
                self.report(f"Op {batcher.op}: answers are held back, and no request is open")
        held = self._numbers_held()  # by workers that leave, and are busy for good
        for sent in run.clients.requests.values():
            if sent.number not in held and sent.at < run.now:  # not refused in this very moment
                self._check_freed(sent)

    def check_stopped(self, took_s: float, drained: bool) -> None:
        """Check that a stop is orderly, and leaves nothing behind."""
        run = self._run
        if not drained:
            self.report("requests were left after drain_timeout, which is longer than their deadlines")
        if took_s > STOPPED_WITHIN_S:
            self.report(f"the workers' stop took {took_s:.1f} s")
        for sent in run.clients.requests.values():
            if not sent.outcome:
                self.report(f"request {sent.number} is never answered")
        leftovers = {
            "processes that nobody waits for": run.kernel.unwaited(),
            "open descriptors": run.kernel.descriptors(),
            "watched descriptors": list(run.selector.keys),
            "outputs": run.outputs.open_outputs,
            "memories shared with workers": set(arena_fds()) - self._arenas_before,
            "deadlines": list(run.scheduler._deadlines._buckets),
        }
        for name, some in leftovers.items():
            if some:
                self.report(f"left behind by a stop: {len(some)} {name}")

    def check_timers(self) -> None:
        """Check that no timer of the service is set any more."""
        timers = [timer for timer in self._run.loop.timers() if _module(timer).startswith("pipeline.")]
        if timers:
            self.report(f"left behind by a stop: timers {timers}")


class LogCheck(logging.Handler):
    """Log handler that reports each traceback, but for those of bytes that a worker sent by a fault."""

    def __init__(self, run: Run, level: int) -> None:
        super().__init__(level)
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._run.note(f"log: {record.levelname} {text}")
        if record.exc_info is None:
            return
        exc = record.exc_info[1]
        if "no frame" in text and self._run.world.garbage and isinstance(exc, ValueError):
            return
        self._run.referee.report(f"logged with a traceback: {text}: {type(exc).__name__}: {exc}")


def queued(batcher: Batcher) -> Iterator[Task]:
    """Return the tasks in a batcher's queue, without changing it."""
    return iter(batcher._queue)


def _module(timer: Any) -> str:
    callback = timer._callback
    while isinstance(callback, partial):
        callback = callback.func
    return getattr(callback, "__module__", "") or ""


def _text(answer: Answer | None) -> str:
    return answer.message if isinstance(answer, ServingError) else ""
