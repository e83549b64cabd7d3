"""Faults that a service under load has: of workers, of the system, and orders of its operator."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.workers import StartPlan, Worker

if TYPE_CHECKING:
    from tests.simulation.run import Run

LONG_S = 20.0  # a pause that is longer than any start


def kill(run: Run) -> None:
    """A worker ends with an exit code or a signal."""
    if worker := _choose(run):
        worker.die("fault", run.rng.choice(run.deaths))


def kill_all(run: Run) -> None:
    """All workers end at the same moment."""
    for worker in run.world.alive():
        worker.die("fault", -9)


def kill_again_and_again(run: Run) -> None:
    """Workers that run a request end one after the other, so that retries meet the next death."""
    delay_s = 0.0
    for _ in range(run.rng.randint(2, 6)):
        asyncio.get_running_loop().call_later(delay_s, _kill_busy, run)
        delay_s += run.rng.choice((0.001, 0.01, 0.3, 2.0))


def _kill_busy(run: Run) -> None:
    if not run.healing and (worker := _choose(run, busy=True)):
        worker.die("fault", -9)


def hang(run: Run) -> None:
    """SIGSTOP for a worker, for good."""
    if worker := _choose(run, busy=True):
        worker.process.stop()


def hang_thread(run: Run) -> None:
    """The next run of a worker never ends; other threads of its process work on."""
    if worker := _choose(run, busy=True):
        worker.quirks.hang_thread = True


def pause(run: Run) -> None:
    """SIGSTOP for a worker, and SIGCONT some time later."""
    if worker := _choose(run, busy=True):
        worker.process.stop()
        asyncio.get_running_loop().call_later(run.rng.choice((0.05, 1.0, 8.0)), worker.process.resume)


def slow(run: Run) -> None:
    """A worker is slow for some time."""
    if worker := _choose(run):
        worker.quirks.slowness = run.rng.choice((5.0, 50.0))
        asyncio.get_running_loop().call_later(3.0, _restore_speed, worker)


def die_in_frame(run: Run) -> None:
    """A worker dies in the middle of its next reply."""
    if worker := _choose(run):
        worker.quirks.cut_reply = "die"


def stop_in_frame(run: Run) -> None:
    """A worker stops for good in the middle of its next reply."""
    if worker := _choose(run):
        worker.quirks.cut_reply = "stop"


def send_garbage(run: Run) -> None:
    """A worker's next reply is no frame."""
    if worker := _choose(run):
        worker.quirks.garbage = True


def break_connection(run: Run) -> None:
    """A worker's lifeline breaks, but the worker lives."""
    if worker := _choose(run):
        worker.process.lifeline.close()


def fail_probe(run: Run) -> None:
    """The next probe of a worker fails."""
    if worker := _choose(run):
        worker.quirks.probe = "fail"


def hang_in_probe(run: Run) -> None:
    """The next probe of a worker never ends."""
    if worker := _choose(run):
        worker.quirks.probe = "hang"


def fail_starts(run: Run) -> None:
    """A worker ends, and so do some of its successors before they are ready."""
    _plan_starts(run, ["exit"] * run.rng.choice((1, 2, 2, 4)))


def crash_loop(run: Run) -> None:
    """A worker ends, and so do some of its successors as soon as they are ready."""
    _plan_starts(run, ["crash"] * run.rng.randint(1, 5))


def hang_in_start(run: Run) -> None:
    """A worker ends, and its successor does not become ready for long."""
    _plan_starts(run, ["slow"])


def fail_spawn(run: Run) -> None:
    """A worker ends while the system has no room for another one."""
    run.failing_spawns = run.rng.randint(1, 2)
    kill(run)


def reload(run: Run) -> None:
    """An operator loads an Op anew."""
    run.order(run.repository.load([run.rng.choice(run.ops)]))


def unload(run: Run) -> None:
    """An operator unloads an Op and loads it again."""
    run.order(run.unload_and_load(run.rng.choice(run.ops)))


def leave(run: Run) -> None:
    """All clients leave that wait for an answer."""
    for sent in list(run.clients.open.values()):
        run.clients.leave(sent)


def _choose(run: Run, *, busy: bool = False) -> Worker | None:
    """Choose a worker that is ready, or one that starts where none is. busy: rather one in a run."""
    alive = run.world.alive()
    ready = [worker for worker in alive if worker.ready]
    running = [worker for worker in ready if busy and worker.begun()]
    return run.rng.choice(running or ready or alive) if alive else None


def _plan_starts(run: Run, kinds: list[str]) -> None:
    if (worker := _choose(run)) is not None and worker.op:
        plans = run.world.plans.setdefault(worker.op, deque())
        plans.extend(
            StartPlan(kind, LONG_S if kind == "slow" else 0.0, run.rng.choice(run.deaths)) for kind in kinds
        )
        worker.die("fault", -9)


def _restore_speed(worker: Worker) -> None:
    worker.quirks.slowness = 1.0


FAULTS: dict[str, Callable[[Run], None]] = {
    fault.__name__: fault
    for fault in (
        kill, kill_all, kill_again_and_again, hang, hang_thread, pause, slow, die_in_frame, stop_in_frame,
        send_garbage, break_connection, fail_probe, hang_in_probe, fail_starts, crash_loop,
        hang_in_start, fail_spawn, reload, unload, leave,
    )
}  # fmt: skip
