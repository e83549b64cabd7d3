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
from typing import Any, Protocol

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


class TrialOrder(msgspec.Struct, frozen=True):
    """Input of the process `pipeline.front.trial`: candidates, batch limits, and the time budget."""

    directory: str  # folder of the model's version, where sample.npz may be
    candidates: list[Candidate]  # the best by its timed runs first, each engine with its first placement
    alternatives: list[Candidate]  # other placements, of which that of the best candidate is tried
    limits: list[int]  # batch limits to try
    budget_s: float  # without the start of the helper


class TrialReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Line of output from the process `pipeline.front.trial`: its progress, or at the end its results."""

    step: str
    share: float  # of the budget
    results: list[Served] | None = None


class Trial(Protocol):
    """Protocol class: running worker instances with a candidate's settings."""

    async def measure(self, limit: int, callers: int, seconds: float) -> float:
        """Send requests of concurrent callers for `seconds`, and return the answered requests per second.

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
    first_per_s: float = 0.0
    rates: dict[tuple[int, int], float] = {}  # by batch limit and callers

    def score(self, limit: int) -> float:
        """Return the geometric mean of the request rates with a batch limit; 0 if one is missing."""
        rates = [self.rates.get((limit, callers), 0.0) for callers in CALLERS]
        return math.prod(rates) ** (1 / len(rates))


class Race:
    """Comparison of settings under load: measures their throughput in a time budget, drops slow ones early.

    The worker instances of each candidate are started once.
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
        return sorted(self.results, key=lambda served: served.score, reverse=True)

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
        await self._drop(
            [each for each in self._running if each.first_per_s < DROP_SHARE * self._best_per_s()]
        )

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
            per_s = await runner.trial.measure(
                self._sorted_limits()[0], CALLERS[-1], FIRST_LOOP_SHARE * self._order.budget_s
            )
        except TrialFailed as exc:
            await self._leave(runner, refused=exc.message)
            return
        runner.first_per_s = max(runner.first_per_s, per_s)
        self._running.sort(key=lambda each: each.first_per_s, reverse=True)

    def _best_per_s(self) -> float:
        """Return the throughput of the best candidate's first loop, in requests per second."""
        return self._running[0].first_per_s if self._running else 0.0

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
                    rate = await runner.trial.measure(limit, callers, self._loop_s(loops_left))
                except TrialFailed as exc:
                    await self._leave(runner, refused=exc.message)
                    continue
                runner.rates[limit, callers] = rate
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
        limits = {limit for limit, _ in runner.rates} if runner else set[int]()
        best = max(limits, key=runner.score, default=FIRST_LIMIT) if runner else FIRST_LIMIT
        return Served(
            candidate.engine,
            candidate.precision,
            candidate.placement,
            best,
            tuple((limit, callers, rate) for (limit, callers), rate in runner.rates.items())
            if runner
            else (),
            runner.first_per_s if runner else 0.0,
            refused,
            candidate.onednn,
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
