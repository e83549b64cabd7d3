"""Live requests that workers of a new version answer, each of which the served version can answer instead."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipeline.errors import ServingError
from pipeline.front.dag_run import DagRun, Inputs
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.front.upgrades.candidate import Candidate
from pipeline.front.upgrades.mirror import Enqueue, VersionWorkers
from pipeline.front.upgrades.shift import CanarySettings, Shift

_HANG_FACTOR = 10.0  # times the served version's time, after which a request runs with the served version
_MIN_HANG_S = 1.0
_END_CHECK_S = 0.05


@dataclass(eq=False)
class LiveRequest:
    """A live request that runs the Op whose model is being upgraded.

    The attribute `dag_run` is the request itself.
    """

    enqueue: Enqueue  # to the served version
    dag_run: DagRun
    node: str
    inputs: Inputs
    began: float
    timer: asyncio.TimerHandle | None = None  # runs the request with the served version; None if it does
    failed: bool = False  # by the new version
    failed_again: bool = False  # by the served version, too


class Canary:
    """Canary release of a new model version: sends a growing share of the live requests to its workers.

    A request that fails there runs again with the served version. A client gets an error only if the served
    version fails the request, too.
    """

    def __init__(
        self, scheduler: Scheduler, candidate: Candidate, settings: CanarySettings, timeout_s: float
    ) -> None:
        """Create the canary, without workers.

        timeout_s: maximum time for the new version to answer a request, before the served version runs it.
        """
        self.shift = Shift(settings)
        self.last_error = ""  # of the new version
        self._workers = VersionWorkers(scheduler, candidate.new_op, candidate.new_plan, live_op=candidate.op)
        self._candidate = candidate
        self._shifted = candidate.shifted
        self._timeout_s = timeout_s
        self._open: dict[DagRun, LiveRequest] = {}  # that the new version got
        self._progress = asyncio.Event()

    async def start(self) -> None:
        """Start all workers of the new version, and begin the first step. Raises StartFailed."""
        await self._workers.start()
        self.shift.begin_step()

    async def stop(self) -> None:
        """Move all open requests to the served version, and end the workers of the new version."""
        self.shift.stop()
        for request in list(self._open.values()):
            if request.timer is not None:
                self._run_with_served_version(request)
        await self._workers.stop()

    async def finish(self) -> None:
        """Wait until the new version has no request in flight, after the last step of the canary.

        Requests that the served version has taken over don't count.
        """
        while any(request.timer is not None for request in self._open.values()):
            await self.wait_for_progress(_END_CHECK_S)

    async def wait_for_progress(self, timeout_s: float) -> None:
        """Wait until a request of the new version has ended, but at most `timeout_s` seconds."""
        self._progress.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._progress.wait(), timeout_s)

    @property
    def has_crashed(self) -> bool:
        """Whether a worker of the new version has died."""
        return self._workers.deaths > 0

    @property
    def is_idle(self) -> bool:
        """Whether the new version has no open live request."""
        return not self._open

    def route(self, enqueue: Enqueue, dag_run: DagRun, node: str, inputs: Inputs) -> None:
        """Queue a task of a live request for the new or the served version.

        enqueue: queues the task for the served version.
        """
        if not self._is_repeatable(dag_run, node):
            enqueue(dag_run, node, inputs)
            return
        request = LiveRequest(enqueue, dag_run, node, inputs, time.monotonic())
        dag_run.cancels.append(partial(self._record_end, request))
        if not self.shift.choose():
            enqueue(dag_run, node, inputs)
            return
        self._open[dag_run] = request
        dag_run.repeat = partial(self._repeat, request)
        self._name_version(dag_run, self._candidate.new)
        wait_s = self._compute_wait_s(dag_run)
        request.timer = asyncio.get_running_loop().call_later(wait_s, self._give_up, request, wait_s)
        self._workers.enqueue(dag_run, node, inputs)

    def _is_repeatable(self, dag_run: DagRun, node: str) -> bool:
        """Return whether a request may run with the new version and, if that fails, with the served version.

        False for requests that name a version, and if the request has run with the new version before.
        """
        request = dag_run.request
        return (
            dag_run.entry.model in self._shifted
            and dag_run not in self._open
            and type(dag_run) is DagRun  # one of several branches of a request can't be repeated alone
            and not (request.version or request.decoupled or dag_run.turns)
            and not dag_run.entry.dag.nodes[node].jumps
        )

    def _compute_wait_s(self, dag_run: DagRun) -> float:
        """Return the seconds after which the served version runs a request, in time for its deadline."""
        usual_s = max(_MIN_HANG_S, _HANG_FACTOR * self.shift.usual_s)
        return min(self._timeout_s, usual_s, max(0.0, dag_run.get_deadline() - time.monotonic()) / 2)

    def _give_up(self, request: LiveRequest, wait_s: float) -> None:
        self.last_error = f"no answer in {wait_s:.3g} s"
        request.failed = True
        self._run_with_served_version(request)

    def _repeat(self, request: LiveRequest, node: str, error: ServingError) -> bool:
        """Run a failed request again with the served version. Return False if the error is final.

        node: the step that failed. A later step may have failed because of the new version's output.
        """
        if request.timer is None:
            request.failed_again = True
            return False
        dag_run = request.dag_run
        if dag_run.answered_at or node not in (request.node, *dag_run.entry.dag.descendants(request.node)):
            return False
        self.last_error = error.message
        request.failed = True
        self._run_with_served_version(request)
        return True

    def _run_with_served_version(self, request: LiveRequest) -> None:
        assert request.timer is not None
        request.timer.cancel()
        request.timer = None
        self._name_version(request.dag_run, self._candidate.old)
        inputs = request.dag_run.run_anew(request.node, request.inputs)
        request.enqueue(request.dag_run, request.node, inputs)

    def _name_version(self, dag_run: DagRun, version: str) -> None:
        """Set the version in the response. A script's Op sets it itself when it dispatches the task."""
        if dag_run.entry.model == self._candidate.key and not dag_run.entry.versioned:
            dag_run.request.model_version = version

    def _record_end(self, request: LiveRequest) -> None:
        """Record the duration of a request that has ended."""
        took_s = time.monotonic() - request.began
        if self._open.pop(request.dag_run, None) is None:
            self.shift.record_old(took_s)
            return
        if request.timer is not None:
            request.timer.cancel()
            request.timer = None
        self.shift.record_new(took_s, failed=request.failed, failed_again=request.failed_again)
        self._progress.set()

    def build_report(self) -> dict[str, Any]:
        """Return the state of the canary as JSON values."""
        waiting = sum(request.timer is not None for request in self._open.values())
        return {**self.shift.build_steps_report(), "waiting": waiting, "last_error": self.last_error[:300]}
