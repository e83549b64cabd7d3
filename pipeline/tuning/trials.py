"""Trials: requests of concurrent callers through real worker instances, to find the best setting for `auto`.

A candidate is an engine, a precision and a placement. Candidates are dropped early (successive halving): the
first loop is short, and only the best candidates get longer loops with several batch limits.
`pipeline.front.trial` starts the instances and runs the loops.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any, NamedTuple, Protocol

import msgspec

from pipeline.errors import ServingError
from pipeline.process.environment import FRONT_PROCESS
from pipeline.process.helper_process import read_outputs, start_program
from pipeline.process.processes import python_module
from pipeline.tuning.choice import Served, Timed

CALLERS = (8, 32)
FIRST_LIMIT = 8  # batch limit of the first loop of a candidate
LIMITS = (8, 16, 32)
SURVIVORS = 2  # candidates that get loops with all batch limits
DROP_SHARE = 0.5  # of the best candidate's throughput; a candidate below it gets no further loop
MIN_LOOP_S, MAX_LOOP_S = 0.2, 2.0
FIRST_LOOP_SHARE = 0.05  # of the budget
# Times the budget; later the race ends. On a busy machine starts take longer than all loops, and a candidate
# without a measurement costs more than a longer first start.
LATEST_END = 2.0
MAX_OTHER_CORES = 0.1  # kept busy by other work; above it, throughput depends on that work


class Candidate(msgspec.Struct, frozen=True):
    """Settings of a model to measure: engine, precision, placement, and their section of config.yml."""

    engine: str
    precision: str
    placement: str
    onednn: bool
    section: dict[str, Any]
    timed: Timed  # times of its runs, by which workers cut batches
    weights_bytes: int

    @property
    def name(self) -> str:
        """Name for the progress bar, e.g. "openvino fp32 process"."""
        return " ".join(
            filter(None, [self.engine, self.precision, "oneDNN" if self.onednn else "", self.placement])
        )


class Load(NamedTuple):
    """Measured load of a candidate: requests per second, CPU seconds of a request, and other work."""

    per_s: float
    cpu_s: float  # of the instances and of the front
    other_cores: float = 0.0  # that other work kept busy meanwhile

    def speed(self, *, by_cpu: bool) -> float:
        """Return the requests per second; by_cpu: the requests per CPU second."""
        return 1 / self.cpu_s if by_cpu else self.per_s


class TrialOrder(msgspec.Struct, frozen=True):
    """Input of the process `pipeline.front.trial`: candidates, batch limits, and the time budget."""

    directory: str  # folder of the model's version, where sample.npz may be
    candidates: list[Candidate]  # the best by its timed runs first, each engine with its first placement
    alternatives: list[Candidate]  # other placements, of which that of the best candidate is tried
    limits: list[int]  # batch limits to try
    budget_s: float  # without the start of the helper
    memory_bytes: int = 0  # most memory of a candidate's worker processes; 0 without a limit
    service: str = ""  # the user's service, as `App.to_json` writes it: its hooks run; empty: none run
    op: str = ""  # the Op of that service
    bodies: list[str] = []  # key/value requests in JSON for that Op


class TrialReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Line of output from the process `pipeline.front.trial`: its progress, or at the end its results."""

    step: str
    share: float  # of the budget
    results: list[Served] | None = None


class Trial(Protocol):
    """Protocol class: running worker instances with a candidate's settings."""

    async def measure(self, limit: int, callers: int, seconds: float) -> Load:
        """Send requests of concurrent callers for `seconds`, and return the measured load.

        limit: maximum of requests in a batch. callers: each sends its next request after the previous answer.
        """
        ...

    async def close(self) -> None:
        """Stop the worker instances."""
        ...


class TrialFailed(ServingError):
    """Raised if workers with a candidate's settings do not start, or refuse requests.

    The candidate is skipped.
    """


class _Runner(msgspec.Struct, eq=False):
    """A candidate with running worker instances, and its results so far."""

    candidate: Candidate
    trial: Trial
    first: list[Load] = []  # of the first loops
    loads: dict[tuple[int, int], Load] = {}  # by batch limit and callers

    def first_speed(self, *, by_cpu: bool) -> float:
        """Return the best speed of the first loops; 0 without one."""
        return max((load.speed(by_cpu=by_cpu) for load in self.first), default=0.0)

    def score(self, limit: int, *, by_cpu: bool) -> float:
        """Return the geometric mean of the speeds with a batch limit; 0 if one is missing."""
        loads = [self.loads.get((limit, callers)) for callers in CALLERS]
        speeds = [load.speed(by_cpu=by_cpu) if load else 0.0 for load in loads]
        return math.prod(speeds) ** (1 / len(speeds))


class Race:
    """Comparison of settings under load: measures their throughput in a time budget, drops slow ones early.

    The worker instances of each candidate are started once. While other work keeps more than
    `MAX_OTHER_CORES` busy, the candidates are compared by CPU time: their throughput would depend on it.
    """

    def __init__(
        self,
        order: TrialOrder,
        start: Callable[[Candidate], Awaitable[Trial]],
        report: Callable[[str, float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """start: starts the instances of a candidate, or raises TrialFailed.

        report: gets step and share from 0 to 1.
        """
        self.results: list[Served] = []  # of all candidates
        self._order = order
        self._start = start
        self._report = report
        self._clock = clock
        self._began = clock()
        self._until = self._began + order.budget_s
        self._latest = self._began + LATEST_END * order.budget_s
        self._running: list[_Runner] = []
        self._other_cores: list[float] = []  # that other work kept busy, in each loop

    @property
    def by_cpu(self) -> bool:
        """Whether CPU time decides, because other work keeps cores busy."""
        cores = self._other_cores
        return bool(cores) and math.fsum(cores) / len(cores) > MAX_OTHER_CORES

    async def run(self) -> list[Served]:
        """Measure all candidate settings under load. Return the results, the best first.

        Refused and dropped candidates are last.
        """
        try:
            for candidate in self._order.candidates:
                await self._enter(candidate)
            for candidate in self._order.alternatives:
                if self._running and _is_alike(candidate, self._running[0].candidate):
                    await self._enter(candidate)
            await self._qualify()
            await self._sweep()
        finally:
            for runner in list(self._running):
                await self._leave(runner)
        by_cpu = self.by_cpu
        results = [msgspec.structs.replace(served, by_cpu=by_cpu) for served in self.results]
        return sorted(results, key=lambda served: served.score, reverse=True)

    async def _enter(self, candidate: Candidate) -> None:
        """Start workers with a candidate's settings and measure them shortly, unless no time is left."""
        if self._running and self._clock() > self._latest:
            self.results.append(self._describe(candidate, refused="no time was left to measure it"))
            return
        self._show_progress(candidate)
        try:
            runner = _Runner(candidate, await self._start(candidate))
        except TrialFailed as exc:
            self.results.append(self._describe(candidate, refused=exc.message))
            return
        self._running.append(runner)
        await self._run_first_loop(runner)
        by_cpu = self.by_cpu
        min_speed = DROP_SHARE * max((each.first_speed(by_cpu=by_cpu) for each in self._running), default=0.0)
        await self._drop([each for each in self._running if each.first_speed(by_cpu=by_cpu) < min_speed])

    async def _qualify(self) -> None:
        """Measure all candidate settings shortly again, and keep the best. The better of two loops counts.

        Other work on the machine disturbs a loop.
        """
        if len(self._running) > SURVIVORS:
            for runner in list(self._running):
                await self._run_first_loop(runner)
            await self._drop(self._running[SURVIVORS:])

    async def _run_first_loop(self, runner: _Runner) -> None:
        """Measure the throughput of a candidate's settings shortly, and sort the candidates by it."""
        self._show_progress(runner.candidate)
        try:
            load = await runner.trial.measure(
                self._sorted_limits()[0], CALLERS[-1], FIRST_LOOP_SHARE * self._order.budget_s
            )
        except TrialFailed as exc:
            await self._leave(runner, refused=exc.message)
            return
        runner.first.append(load)
        self._other_cores.append(load.other_cores)
        by_cpu = self.by_cpu
        self._running.sort(key=lambda each: each.first_speed(by_cpu=by_cpu), reverse=True)

    async def _drop(self, runners: list[_Runner]) -> None:
        """Stop the workers of these candidates, which are too slow."""
        for runner in runners:
            await self._leave(runner)

    async def _sweep(self) -> None:
        """Measure the throughput for each batch limit and number of callers. The candidates take turns."""
        steps = list(product(self._sorted_limits(), CALLERS))
        for number, (limit, callers) in enumerate(steps):
            for runner in list(self._running):
                self._show_progress(runner.candidate)
                loops_left = (len(steps) - number) * len(self._running)
                try:
                    load = await runner.trial.measure(limit, callers, self._loop_s(loops_left))
                except TrialFailed as exc:
                    await self._leave(runner, refused=exc.message)
                    continue
                runner.loads[limit, callers] = load
                self._other_cores.append(load.other_cores)
            if self._clock() > self._latest and callers == CALLERS[-1]:
                return

    def _sorted_limits(self) -> list[int]:
        """Return the batch limits to try, `FIRST_LIMIT` and its neighbours first."""
        return sorted(self._order.limits, key=lambda limit: abs(math.log(limit / FIRST_LIMIT)))

    def _loop_s(self, loops: float) -> float:
        """Return the seconds of one measurement, if so many share the rest of the budget."""
        return min(MAX_LOOP_S, max(MIN_LOOP_S, (self._until - self._clock()) / max(1.0, loops)))

    async def _leave(self, runner: _Runner, refused: str = "") -> None:
        """Stop the workers of a candidate, and record its result. refused: the error; empty without one."""
        self._running.remove(runner)
        self.results.append(self._describe(runner.candidate, runner, refused))
        await runner.trial.close()

    def _describe(self, candidate: Candidate, runner: _Runner | None = None, refused: str = "") -> Served:
        """Return the measured result of a candidate: its best batch limit, and its requests per second."""
        loads = runner.loads if runner else {}
        by_cpu = self.by_cpu
        best = FIRST_LIMIT
        if runner and loads:
            best = max({limit for limit, _ in loads}, key=lambda limit: runner.score(limit, by_cpu=by_cpu))
        return Served(
            candidate.engine,
            candidate.precision,
            candidate.placement,
            best,
            tuple((*at, load.per_s) for at, load in loads.items()),
            max((load.per_s for load in runner.first), default=0.0) if runner else 0.0,
            refused,
            candidate.onednn,
            tuple((*at, load.cpu_s) for at, load in loads.items()),
        )

    def _show_progress(self, candidate: Candidate) -> None:
        """Report the candidate that is measured now, and the used share of the budget."""
        share = (self._clock() - self._began) / self._order.budget_s
        self._report(candidate.name, min(1.0, share))


def _is_alike(candidate: Candidate, other: Candidate) -> bool:
    """Return whether two candidates differ only in their placement."""
    return (candidate.engine, candidate.precision, candidate.onednn) == (
        other.engine,
        other.precision,
        other.onednn,
    )


_HELPER = "pipeline.front.trial"  # by name: the front is a layer above this module
_START_S = 60.0  # added to twice the budget: starts of large models
_ERROR_LINES = 3


def run_race(order: TrialOrder, report: Callable[[str, float], None]) -> list[Served]:
    """Measure candidate settings under load in a child process. Return the results, the best first.

    report: gets step and share from 0 to 1. Raises TrialFailed if the process ends without results.
    """
    errors, lines = bytearray(), bytearray()
    results: list[list[Served]] = []

    def receive(data: bytes) -> None:
        lines.extend(data)
        *complete, rest = lines.split(b"\n")
        lines[:] = rest
        for line in complete:
            message = msgspec.json.decode(line, type=TrialReport)
            report(message.step, message.share)
            if message.results is not None:
                results.append(message.results)

    read_end, write_end = os.pipe()
    command = [*python_module(_HELPER, parent=os.getpid()), str(write_end)]
    env = {**FRONT_PROCESS, **os.environ}
    with os.fdopen(read_end, "rb"), contextlib.ExitStack() as until_started:
        until_started.callback(os.close, write_end)
        stdin = msgspec.json.encode(order)
        try:
            with start_program(command, stdin=stdin, env=env, pass_fds=[write_end]) as process:
                until_started.close()
                assert process.stdout is not None and process.stderr is not None
                sinks = {
                    read_end: receive,
                    process.stdout.fileno(): errors.extend,
                    process.stderr.fileno(): errors.extend,
                }
                deadline = time.monotonic() + 2 * LATEST_END * order.budget_s + _START_S
                ended = read_outputs(process, sinks, deadline, lambda: bool(results))
        except OSError as exc:
            raise TrialFailed(f"its process can't be started ({exc})") from exc
    if results:
        return results[0]
    last_lines = errors.decode(errors="replace").strip().splitlines()[-_ERROR_LINES:]
    raise TrialFailed(" ".join(["its process failed" if ended else "its process took too long", *last_lines]))
