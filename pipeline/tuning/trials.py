"""Trials: requests of concurrent callers through real worker instances, to find the best setting for `auto`.

A candidate is an engine, a precision and a placement. Two candidates take turns in short loops, and the
slower one leaves as soon as the difference is clear. The batch limits of the last candidate are compared
likewise, and at the end its worker processes with shards.
`pipeline.front.trial` starts the instances and runs the loops.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle, product
from statistics import median
from typing import Any, NamedTuple, Protocol

import msgspec

from pipeline.errors import ServingError
from pipeline.process.environment import FRONT_PROCESS
from pipeline.process.helper_process import read_outputs, start_program
from pipeline.process.processes import python_module
from pipeline.tuning.choice import Served, Timed
from pipeline.tuning.duel import MIN_PAIRS, Duel, Load

CALLERS = (8, 32)
FIRST_LIMIT = 8  # batch limit that others have to beat
LIMITS = (8, 16, 32)
LOOP_S = 0.1  # of a loop; longer without enough answers
HTTP_LOOP_S = 0.3  # of a loop over connections: ratios of shorter ones spread from 0.4 to 4 on shared hosts
MIN_SHARDS_RATIO = 1.1  # of the speed of shards to that of worker processes, which stay the default below it
FIRST_LOOP_SHARE = 0.03  # of the budget, for each of a candidate's first loops
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
    shards: int = 1  # processes that serve connections by themselves; 1: worker processes behind one front

    @property
    def name(self) -> str:
        """Name for the progress bar, e.g. "openvino fp32 process"."""
        placed = f"{self.shards} shards" if self.shards > 1 else self.placement
        return " ".join(filter(None, [self.engine, self.precision, "oneDNN" if self.onednn else "", placed]))


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
    sharded: list[Candidate] = []  # each engine with shards, of which that of the best candidate is tried


class TrialReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Line of output from the process `pipeline.front.trial`: its progress, or finally its results."""

    step: str
    share: float  # of the budget
    results: list[Served] | None = None


class Trial(Protocol):
    """Protocol class: running worker instances with a candidate's settings."""

    async def measure(self, limit: int, callers: int, seconds: float, *, over_http: bool = False) -> Load:
        """Send requests of concurrent callers for `seconds`, and return the measured load.

        limit: maximum of requests in a batch. callers: number of callers; each sends its next request after
        the previous answer. over_http: each caller has an HTTP connection; otherwise requests go directly to
        the scheduler.
        """
        ...

    async def close(self) -> None:
        """Stop the worker instances."""
        ...


class TrialFailed(ServingError):
    """Raised if workers with a candidate's settings do not start, or refuse requests.

    The candidate is skipped.
    """


_Step = tuple[int, int]  # batch limit and callers


class _Runner(msgspec.Struct, eq=False):
    """A candidate with running worker instances, and its results so far."""

    candidate: Candidate
    trial: Trial
    batch_limit: int  # the best so far
    loads: dict[_Step, list[Load]] = {}
    ratio: float = 0.0  # of its speed to that of the candidate to which it lost; 0 without
    pairs: int = 0  # of loops, by which it lost


class _Setting(NamedTuple):
    """One side of a comparison: running instances, and their batch limit."""

    runner: _Runner
    limit: int = 0  # 0: the limit of the step


class Race:
    """Comparison of settings under load, by pairs of short load tests within a time budget.

    The fastest candidate so far and the next candidate take turns, A B B A, until the difference is clear
    (see `Duel`). Then the slower candidate is stopped. The batch limits of the last candidate are compared in
    the same way. If other programs keep more than `MAX_OTHER_CORES` cores busy, CPU time is compared instead
    of throughput, which would depend on them.
    """

    def __init__(
        self,
        order: TrialOrder,
        start: Callable[[Candidate], Awaitable[Trial]],
        report: Callable[[str, float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the candidates to compare.

        start: starts the instances of a candidate, or raises TrialFailed. report: gets the name of a step and
        its progress, 0 to 1.
        """
        self.results: list[Served] = []  # of all candidates
        self._order = order
        self._limits = sorted(order.limits, key=lambda limit: abs(math.log(limit / FIRST_LIMIT)))
        self._start = start
        self._report = report
        self._clock = clock
        self._began = clock()
        self._until = self._began + order.budget_s
        self._latest = self._began + LATEST_END * order.budget_s
        self._running: list[_Runner] = []  # the fastest so far, and its challenger
        self._other_cores: list[float] = []  # that other work kept busy, in each loop
        self._longest_start_s = 0.0
        self._starts_left = len(order.candidates) + bool(order.alternatives) + bool(order.sharded)
        self._duels_left = self._starts_left - 1 + len(order.limits) - 1

    @property
    def by_cpu(self) -> bool:
        """Whether CPU time is compared instead of throughput, because other programs keep cores busy."""
        cores = self._other_cores
        return bool(cores) and math.fsum(cores) / len(cores) > MAX_OTHER_CORES

    async def run(self) -> list[Served]:
        """Measure all candidate settings under load. Return the results, the best first.

        Refused candidates are last.
        """
        try:
            for candidate in self._order.candidates:
                await self._enter(candidate)
            for candidate in self._order.alternatives:
                if self._running and _is_alike(candidate, self._running[0].candidate):
                    await self._enter(candidate, against_default=True)
            if self._running:
                await self._choose_limit(self._running[0])
            for candidate in self._order.sharded:
                if self._running and _is_alike(candidate, self._running[0].candidate):
                    await self._try_shards(candidate)
        finally:
            for runner in list(self._running):
                await self._leave(runner)
        by_cpu = self.by_cpu
        results = [msgspec.structs.replace(served, by_cpu=by_cpu) for served in reversed(self.results)]
        return sorted(results, key=lambda served: bool(served.refused))

    async def _enter(self, candidate: Candidate, *, against_default: bool = False) -> None:
        """Start workers with a candidate's settings, and compare them with the fastest candidate.

        The workers do not start if no time is left. against_default: only a clear difference replaces the
        fastest candidate.
        """
        runner = await self._start_runner(candidate, self._limits[0])
        if runner is None:
            return
        for callers in CALLERS:  # the first runs prepare memory and kernels
            seconds = max(LOOP_S, FIRST_LOOP_SHARE * self._order.budget_s)
            if await self._measure(runner, self._limits[0], callers, seconds) is None:
                return
        if len(self._running) > 1:
            await self._drop_slower(has_default=against_default)

    async def _start_runner(self, candidate: Candidate, limit: int) -> _Runner | None:
        """Start workers with a candidate's settings. limit: maximum of requests in a batch.

        If the workers do not start, returns None and records the reason.
        """
        if self._running and self._clock() > self._latest:
            self.results.append(_describe(candidate, refused="no time was left to measure it"))
            return None
        self._show_progress(candidate)
        began = self._clock()
        try:
            runner = _Runner(candidate, await self._start(candidate), limit)
        except TrialFailed as exc:
            self.results.append(_describe(candidate, refused=exc.message))
            return None
        self._longest_start_s = max(self._longest_start_s, self._clock() - began)
        self._starts_left -= 1
        self._running.append(runner)
        return runner

    async def _try_shards(self, candidate: Candidate) -> None:
        """Compare shards (workers that serve HTTP connections) with the fastest candidate, both over HTTP.

        Only a gain of `MIN_SHARDS_RATIO` with few and with many callers replaces worker processes.
        """
        (fastest,) = self._running
        limit = fastest.batch_limit
        # The batcher of a shard gets its limit with the configuration.
        section = {**candidate.section, "batch_size": limit}
        shards = await self._start_runner(msgspec.structs.replace(candidate, section=section), limit)
        if shards is None:
            return
        steps = [(limit, callers) for callers in reversed(CALLERS)]
        before = {step: list(loads) for step, loads in fastest.loads.items()}
        for runner, callers in product((shards, fastest), CALLERS):  # the first loops prepare memory
            if await self._measure(runner, limit, callers, LOOP_S, over_http=True) is None:
                break
        else:
            for runner, step in product((shards, fastest), steps):  # loops without HTTP have other figures
                runner.loads.pop(step, None)
            await self._drop_slower(has_default=True, steps=steps, min_ratio=MIN_SHARDS_RATIO, over_http=True)
        if not shards.pairs and not fastest.pairs:  # without a comparison
            fastest.loads = before

    async def _drop_slower(
        self,
        *,
        has_default: bool,
        steps: Sequence[_Step] = (),
        min_ratio: float = 1.0,
        over_http: bool = False,
    ) -> None:
        """Compare the two running candidates under several loads, and stop the workers of the slower one.

        steps: the load tests; by default those of all batch limits. has_default, min_ratio: see `Duel`.
        """
        fastest, challenger = self._running
        few, many = CALLERS
        first, *other_limits = self._limits
        # Few callers never fill a batch above the first limit.
        steps = steps or [(first, many), (first, few), *((limit, many) for limit in other_limits)]
        duel = Duel(has_default=has_default, min_ratio=min_ratio)
        sides = _Setting(fastest), _Setting(challenger)
        if not await self._compare(*sides, steps, duel, over_http=over_http):
            return
        by_cpu = self.by_cpu
        ratio, loser = duel.ratio(by_cpu=by_cpu), challenger
        if duel.is_won(by_cpu=by_cpu):
            ratio, loser = 1 / ratio, fastest
        loser.ratio, loser.pairs = ratio, len(duel)
        await self._leave(loser)

    async def _choose_limit(self, runner: _Runner) -> None:
        """Compare the batch limits with many callers. Only a clear difference replaces the first limit."""
        for limit in self._limits[1:]:
            sides = _Setting(runner, runner.batch_limit), _Setting(runner, limit)
            duel = Duel(has_default=True)
            if not await self._compare(*sides, [(0, CALLERS[-1])], duel):
                return
            if duel.is_won(by_cpu=self.by_cpu):
                runner.batch_limit = limit

    async def _compare(
        self,
        incumbent: _Setting,
        challenger: _Setting,
        steps: Sequence[_Step],
        duel: Duel,
        *,
        over_http: bool = False,
    ) -> bool:
        """Measure two settings in turns, A B B A, until the winner is certain or the time is used.

        A promising challenger gets all pairs of load tests, up to the latest end of the race. Returns False
        if a candidate has failed. steps: each is used for four load tests. duel: collects the measured loads.
        """
        until = self._end_of_duel()
        loop_s = HTTP_LOOP_S if over_http else LOOP_S
        sides = incumbent, challenger
        for limit, callers in cycle(steps):
            for turns in ((0, 1), (1, 0)):
                pair: dict[int, Load] = {}
                for side in turns:
                    runner, own_limit = sides[side]
                    batch = own_limit or limit
                    load = await self._measure(runner, batch, callers, loop_s, over_http=over_http)
                    if load is None:
                        return False
                    pair[side] = load
                duel.add(pair[0], pair[1])
            now = self._clock()
            by_cpu = self.by_cpu
            if now > self._latest or duel.is_decided(by_cpu=by_cpu):
                break
            if now > until and len(duel) >= MIN_PAIRS and not duel.is_promising(by_cpu=by_cpu):
                break
        return True

    def _end_of_duel(self) -> float:
        """Return the instant until which the next duel may run: the duels share the rest of the budget."""
        now = self._clock()
        left_s = self._until - now - self._starts_left * self._longest_start_s
        share_s = left_s / max(1, self._duels_left)
        self._duels_left -= 1
        return now + share_s

    async def _measure(
        self, runner: _Runner, limit: int, callers: int, seconds: float, *, over_http: bool = False
    ) -> Load | None:
        """Return the measured load of a candidate in one load test.

        If the test fails, a candidate is withdrawn, and None is returned.
        """
        self._show_progress(runner.candidate)
        try:
            load = await runner.trial.measure(limit, callers, seconds, over_http=over_http)
        except TrialFailed as exc:
            # Over HTTP only shards may be refused: the other instances have answered without it.
            await self._leave(self._running[-1] if over_http else runner, refused=exc.message)
            return None
        runner.loads.setdefault((limit, callers), []).append(load)
        self._other_cores.append(load.other_cores)
        return load

    async def _leave(self, runner: _Runner, refused: str = "") -> None:
        """Stop the workers of a candidate, and record its result.

        refused: the error; empty if there is none.
        """
        self._running.remove(runner)
        self.results.append(_describe(runner.candidate, runner, refused))
        await runner.trial.close()

    def _show_progress(self, candidate: Candidate) -> None:
        """Report the candidate that is measured now, and the used share of the budget."""
        share = (self._clock() - self._began) / self._order.budget_s
        self._report(candidate.name, min(1.0, share))


def _describe(candidate: Candidate, runner: _Runner | None = None, refused: str = "") -> Served:
    """Return the measured result of a candidate: its batch limit, and the medians over its load tests."""
    loads = runner.loads if runner else {}
    return Served(
        candidate.engine,
        candidate.precision,
        candidate.placement,
        runner.batch_limit if runner else FIRST_LIMIT,
        tuple((*at, median(load.per_s for load in loops)) for at, loops in loads.items()),
        refused,
        candidate.onednn,
        tuple((*at, median(load.cpu_s for load in loops)) for at, loops in loads.items()),
        ratio=runner.ratio if runner else 0.0,
        pairs=runner.pairs if runner else 0,
        shards=candidate.shards,
    )


def _is_alike(candidate: Candidate, other: Candidate) -> bool:
    """Return whether two candidates have the same engine, precision and oneDNN setting."""
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

    report: called with the step's name and the progress from 0 to 1. Raises TrialFailed if the process ends
    without results.
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
