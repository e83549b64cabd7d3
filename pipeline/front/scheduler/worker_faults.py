"""Detection of faulty workers: model runs that are late or hang, and requests that seem to kill workers.

`judge` and `Sighting.update` are pure: no clock, no /proc.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from pipeline.errors import PoisonRequest, ServingError, WorkerLost
from pipeline.front.dag_run import Task
from pipeline.front.pool.worker_process import Dispatch, Instance, WorkerProcess
from pipeline.process.isolation import run_isolated
from pipeline.process.processes import Activity

LOOK_S = 1.0  # between two looks at a process that is busy with the same run: each reads /proc
LATE_S = 0.02  # above twice the usual time of a dispatch, a run is late
STUCK_AFTER_S, STUCK_RUNS = 10.0, 10  # a run hangs when it makes no progress for longer than both
STOPPED_LIMIT_S = 5.0  # a process that is stopped (SIGSTOP) for so long in a run is killed
STALLED_AFTER_S = 0.9 * LOOK_S  # without CPU time, before the first request of a dispatch begins
IDLE_SHARE = 0.02  # of a core: a process that uses less is idle, but for threads that wake now and then


class RunTimes(NamedTuple):
    """Recent and mean duration of a model's batches in the workers, in seconds, see `Pace`."""

    usual_s: float | None  # follows the latest dispatches closely; None before the first
    run_s: float  # mean; 0 before the first
    held_s: float = 0.0  # how long a worker may hold finished answers back, see `Executor.together_ns`


class Verdict(Enum):
    """Health of a worker instance that executes tasks: working, late, stalled, hung, stopped or lost."""

    WORKING = "working"
    LATE = "late"  # other instances take the requests behind its run
    STALLED = "stalled"  # likewise: it uses no CPU and has begun no request, as in a probe that hangs
    HUNG = "hung"  # other instances take the requests of its run, too
    STOPPED = "stopped"  # likewise, for its process is stopped
    LOST = "lost"  # its process is killed


class Sighting(NamedTuple):
    """Observations of a busy worker process or thread in /proc, since its model run last made progress.

    A look is one reading of its CPU time and state.
    """

    progress_at: float  # instant of that progress, by which the run is recognised
    looked_at: float  # instant of the latest look
    cpu_s: float  # CPU time by then
    idle_s: float = 0.0  # for how long it has used no CPU
    stopped_s: float = 0.0  # for how long it was stopped

    @classmethod
    def first_look(cls, progress_at: float, now: float, activity: Activity) -> Sighting:
        """Return the observations after the first reading of a busy worker's CPU time and state.

        progress_at, now: instants of time.monotonic().
        """
        return cls(progress_at, now, activity.cpu_s, stopped_s=LOOK_S if activity.is_stopped else 0.0)

    def update(self, now: float, activity: Activity) -> Sighting:
        """Return the observations after another reading of a busy worker's CPU time and state.

        now: instant of time.monotonic(). The time since the previous reading counts for 1.5 `LOOK_S` at most:
        if the front-end process itself was stopped, it does not know whether the worker was idle.
        """
        elapsed_s = now - self.looked_at
        counted_s = min(elapsed_s, 1.5 * LOOK_S)
        is_idle = activity.state != "R" and activity.cpu_s - self.cpu_s <= IDLE_SHARE * elapsed_s
        return Sighting(
            self.progress_at,
            now,
            activity.cpu_s,
            self.idle_s + counted_s if is_idle else 0.0,
            self.stopped_s + counted_s if activity.is_stopped else 0.0,
        )


def judge(
    sighting: Sighting,
    now: float,
    usual_s: float | None,
    run_s: float,
    held_s: float = 0.0,
    *,
    waits_idly: bool = False,
    has_begun: bool = True,
) -> Verdict:
    """Return whether a worker instance works, is late or hangs, given the observations of its process.

    usual_s, run_s, held_s: durations of the Op's dispatches, see `RunTimes`. waits_idly: whether the model is
    on another server, so that an idle process is no sign of a hang. has_begun: whether the worker has begun a
    request of the dispatch.
    """
    if sighting.stopped_s >= STOPPED_LIMIT_S:
        return Verdict.LOST
    if sighting.stopped_s > 0.0:
        return Verdict.STOPPED
    if sighting.idle_s >= max(STUCK_AFTER_S, STUCK_RUNS * run_s) and not waits_idly:
        return Verdict.HUNG
    if sighting.idle_s >= STALLED_AFTER_S and not has_begun:
        return Verdict.STALLED
    if now - sighting.progress_at > late_after_s(usual_s, held_s):
        return Verdict.LATE
    return Verdict.WORKING


def late_after_s(usual_s: float | None, held_s: float = 0.0) -> float:
    """Return the duration in seconds above which a model run is late. No other request should wait behind it.

    usual_s, held_s: durations of the Op's dispatches, see `RunTimes`.
    """
    return 2 * (usual_s or 0.0) + LATE_S + held_s


class HungRuns:
    """Watches the busy workers of one pipeline step (Op), and reports each model run that is late or hangs.

    A look at a worker reads /proc and takes microseconds. While the Op works, there is one look per second;
    there are more only while requests wait behind a run.
    """

    def __init__(
        self,
        instances: Callable[[], Iterable[Instance]],
        get_times: Callable[[], RunTimes],
        report: Callable[[Instance, Verdict], None],
        *,
        waits_idly: bool,
    ) -> None:
        """Create the watcher. instances: returns the instances to watch. get_times: returns the Op's times.

        report: called at each look with an instance and its verdict, unless the verdict is WORKING.
        waits_idly: see `judge`.
        """
        self._instances = instances
        self._get_times = get_times
        self._report = report
        self._waits_idly = waits_idly
        self._sightings: dict[Instance, Sighting] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._look_at = 0.0

    def watch(self, instance: Instance) -> None:
        """Schedule a look at a worker instance with a new dispatch, at the time when its run may be late."""
        self._look_by(self._next_look(instance, time.monotonic()))

    def _look_by(self, at: float) -> None:
        if self._timer is not None:
            if self._look_at <= at:
                return
            self._timer.cancel()
        self._look_at = at
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, at - time.monotonic()), self._look)

    def _next_look(self, instance: Instance, now: float) -> float:
        """Return the instant of the next look at a busy worker instance."""
        began = instance.in_flight[0].run_began
        looks = [began + LOOK_S, now + LOOK_S]
        if any(not dispatch.recalled and len(dispatch.tasks) > 1 for dispatch in instance.in_flight) or (
            len(instance.in_flight) > 1 and not instance.in_flight[1].recalled
        ):
            times = self._get_times()
            looks.append(began + late_after_s(times.usual_s, times.held_s))
        return min([at for at in looks if at > now])

    def _look(self) -> None:
        self._timer = None
        busy = [instance for instance in self._instances() if instance.in_flight]
        self._sightings = {i: self._sightings[i] for i in busy if i in self._sightings}
        next_look = math.inf
        for instance in busy:
            run_isolated(self._look_at_instance, instance, instance.in_flight[0])
            next_look = min(next_look, self._next_look(instance, time.monotonic()))
        if next_look < math.inf:
            self._look_by(next_look)

    def _look_at_instance(self, instance: Instance, dispatch: Dispatch) -> None:
        now = time.monotonic()
        sighting = self._sight(instance, dispatch.run_began, now)
        verdict = judge(
            sighting, now, *self._get_times(),
            waits_idly=self._waits_idly, has_begun=instance.is_running,
        )  # fmt: skip
        if verdict is not Verdict.WORKING:
            self._report(instance, verdict)

    def _sight(self, instance: Instance, began: float, now: float) -> Sighting:
        """Return the observations of a worker instance's current run.

        The process is not looked up in /proc until the run has taken a second.

        began: instant at which the run began.
        """
        before = self._sightings.get(instance)
        if before is not None and before.progress_at != began:
            before = None
        activity = instance.read_activity() if now - began >= LOOK_S else None
        if activity is None:
            return before or Sighting(began, now, 0.0)
        sighting = before.update(now, activity) if before else Sighting.first_look(began, now, activity)
        self._sightings[instance] = sighting
        return sighting


LONE_DEATHS = 2  # a request is refused when this many workers died while they ran only this request
UNSEEN_DEATHS = 5  # deaths before the first request began; above this, reading the dispatch may be the cause


def tried_again(process: WorkerProcess, crash_retry: bool) -> Iterator[Task]:
    """Yield the tasks of a dying worker process that must be queued again.

    Tasks that may have caused its death become suspects, which run alone from now on. Tasks that must not run
    again go to `process.refused` until the cause of the death is known. crash_retry: the setting of the Op.
    """
    causes = {task for instance in process.instances for task in _find_causes(instance)}
    for instance in process.instances:
        dispatched = [task for dispatch in instance.in_flight for task in dispatch.open_tasks()]
        for task in dict.fromkeys([*dispatched, *instance.streams.drain()]):
            if task.moved:  # another instance has a copy
                continue
            is_cause = task in causes
            if task.streaming or (is_cause and _is_refused(task, crash_retry, alone=len(causes) == 1)):
                process.refused.append(task)
            elif task.wanted:
                yield task
        instance.in_flight.clear()


def _find_causes(instance: Instance) -> list[Task]:
    """Return the tasks that a worker instance executed when its process died. One of them may have killed it.

    This includes tasks whose answers continue after their dispatch: they run in threads of the model.
    """
    return [*_find_dispatched_causes(instance), *instance.streams.list_tasks()]


def _find_dispatched_causes(instance: Instance) -> list[Task]:
    if not instance.in_flight:
        return []
    dispatch = instance.in_flight[0]
    if instance.began(dispatch):
        return instance.begun_tasks(dispatch)
    unseen = dispatch.open_tasks()
    for task in unseen:
        task.unseen_deaths += 1
    return [task for task in unseen if task.unseen_deaths > UNSEEN_DEATHS]


def _is_refused(task: Task, crash_retry: bool, *, alone: bool) -> bool:
    """Mark a task as a suspect for a worker's death. Return whether it must not run again.

    alone: whether the process ran no other task; only then the death counts. For example, an operator may
    kill a worker with a whole batch, and then the worker that retries one of its requests. The request must
    survive this.
    """
    if not crash_retry:
        return True
    task.suspect = True
    task.lone_deaths += alone
    return task.lone_deaths >= LONE_DEATHS


def refuse_blamed(process: WorkerProcess) -> None:
    """Fail the tasks in `process.refused`, which are blamed for the death of this worker process.

    A task that killed two workers alone fails with PoisonRequest (HTTP 500), others with WorkerLost (503).
    """
    why = f"the worker of Op {process.op} died under this request ({process.describe_death()})"
    for task in process.refused:
        if task.streaming:
            error: ServingError = WorkerLost(f"{why}, which has answers already, so it was not tried again")
        elif task.suspect:
            error = PoisonRequest(
                f"{why} for the second time, and nothing else ran there; it is not tried again"
            )
        else:
            error = WorkerLost(f"{why}; crash_retry is off for this Op, so it was not tried again")
        run_isolated(task.fail, error)
    process.refused.clear()  # other objects may refer to the process for longer
