"""One upgrade of a model: compares the answers of both versions, shifts requests, and switches or refuses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from pipeline.errors import NotReady, StartFailed
from pipeline.front.repository import LoadFailed, ModelLoader, Repository
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.front.upgrades.answers import Difference, Tolerances
from pipeline.front.upgrades.canary import Canary
from pipeline.front.upgrades.candidate import Candidate
from pipeline.front.upgrades.mirror import MirroredRun, MirrorWorkers, Sample, Tap, compare_answers
from pipeline.front.upgrades.sequential_test import SequentialTest, Verdict
from pipeline.front.upgrades.shift import CanarySettings, summarise

MIN_REQUESTS = 100  # compared before the end of `minutes` accepts a version
MAX_EXAMPLES = 10  # differences in a report
_IDLE_CHECK_S = 0.005
_DEATH_CHECK_S = 0.2
_OLD_LIMIT_S = 60.0  # for the old version, whose worker has the lowest priority, too
_HANG_FACTOR = 10.0  # times the old version's time, that the new version may take at least
_MEMORY_AFTER = 10  # requests, until memory is measured the first time
_LEAK_BYTES = 128 << 20  # growth beyond the growth of the old version
_LEAK_SHARE = 0.2  # the same, as a share of the memory of the new version
_KEPT_TIMES = 10_000
CANCELLED = "it was cancelled"

log = logging.getLogger(__name__)


class Result(StrEnum):
    """The result of a model upgrade, as the upgrade's URL reports it."""

    RUNNING = "running"
    ACCEPTED = "accepted"  # and served
    REFUSED = "refused"
    INCONCLUSIVE = "inconclusive"  # ended without a verdict; the old version is served


class Phase(StrEnum):
    """The current phase of a model upgrade, or the phase in which it ended."""

    LOADING = "loading"
    COMPARING = "comparing"
    CANARY = "canary"
    SWITCHING = "switching"


@dataclass(frozen=True)
class UpgradeSettings:
    """Settings of an upgrade, as a client requests them."""

    requests: int = 2000  # compared; 0: until the end of `minutes`
    minutes: float = 0.0  # 0: until the last request
    tolerance: float = 0.0  # share of changed answers beyond those that the old version changes by itself
    tolerances: Tolerances = field(default_factory=Tolerances)  # between numbers
    timeout_s: float = 10.0  # after which the new version hangs, unless the old version is slow
    share_cpu: bool = False  # copies compete with live requests for the CPU
    canary: CanarySettings = field(default_factory=CanarySettings)


class _Refused(Exception):
    """Raised if the new version has a fault, so that the upgrade is refused. The message is the reason."""


class _Inconclusive(Exception):
    """Raised when the versions can't be compared any longer. The message is the reason."""


class Upgrade:
    """A model upgrade: compares the answers of the old and the new version to copies of live requests.

    Live requests go to the old version's normal workers. A separate worker of each version runs the copies,
    so that neither a crash nor a hang of the new version can fail or delay a live request.

    If a canary is configured, a growing share of the live requests then goes to the new version. The
    comparison of copies continues.
    """

    def __init__(
        self, scheduler: Scheduler, repository: Repository, candidate: Candidate, settings: UpgradeSettings
    ) -> None:
        self.candidate = candidate
        self.result = Result.RUNNING
        self.phase, self.reason = Phase.LOADING, "the new version is loaded"
        self._settings = settings
        self._scheduler = scheduler
        self._repository = repository
        self._test = SequentialTest(settings.tolerance, settings.requests or float("inf"))
        self._canary = (
            Canary(scheduler, candidate, settings.canary, settings.timeout_s)
            if settings.canary.shares
            else None
        )
        self._tap = Tap(self._canary)
        self._old = MirrorWorkers(scheduler, candidate.op, candidate.old_plan, settings.share_cpu)
        self._new = MirrorWorkers(scheduler, candidate.new_op, candidate.new_plan, settings.share_cpu)
        self._live_files = candidate.old_plan.files
        self._deadline = float("inf")
        self._began_at = time.time()
        self._first_memory: tuple[float, float] | None = None
        self._memory = (0.0, 0.0)
        self._kinds: Counter[str] = Counter()
        self._examples: list[Difference] = []
        self._times: tuple[deque[float], deque[float]] = deque(maxlen=_KEPT_TIMES), deque(maxlen=_KEPT_TIMES)

    async def run(self) -> None:
        """Carry out the upgrade to its end. If the service stops, the upgrade ends without a verdict."""
        result, reason = Result.INCONCLUSIVE, CANCELLED
        try:
            result, reason = await self._conclude()
        finally:
            self._scheduler.mirror(self.candidate.op, None)
            try:
                await self._stop_workers()
            finally:
                self.end(result, reason)

    async def _conclude(self) -> tuple[Result, str]:
        """Carry out the upgrade, and return its result with the reason."""
        try:
            return Result.ACCEPTED, await self._repository.unless_stopped(self._carry_out())
        except _Refused as exc:
            return Result.REFUSED, str(exc)
        except _Inconclusive as exc:
            return Result.INCONCLUSIVE, str(exc)
        except NotReady as exc:
            return Result.INCONCLUSIVE, exc.message
        except Exception:
            log.exception("The upgrade of model %s has ended by a fault of ours", self.candidate.name)
            return Result.INCONCLUSIVE, "a fault of the server; its log has the traceback"

    async def _stop_workers(self) -> None:
        canary = [] if self._canary is None else [self._canary.stop()]
        await asyncio.gather(self._old.stop(), self._new.stop(), *canary)

    def end(self, result: Result, reason: str) -> None:
        """Set the final result, and log it."""
        self.result, self.reason = result, reason
        level = logging.INFO if result is Result.ACCEPTED else logging.WARNING
        name, old, new = self.candidate.name, self.candidate.old, self.candidate.new
        log.log(level, "Upgrade of model %s from version %s to %s: %s: %s", name, old, new, result, reason)

    async def _carry_out(self) -> str:
        """Compare the versions, shift requests to the new one, and switch to it.

        Return a description of the comparison.
        """
        await self._start_workers()
        self.phase, self.reason = Phase.COMPARING, "answers are compared"
        if self._settings.minutes:
            self._deadline = time.monotonic() + 60.0 * self._settings.minutes
        self._scheduler.mirror(self.candidate.op, self._tap)
        await self._compare_copies({Verdict.ACCEPT, Verdict.REFUSE})
        if self._canary is not None:
            await self._shift_requests(self._canary)
        self._scheduler.mirror(self.candidate.op, None)
        self.phase, self.reason = Phase.SWITCHING, "the new version takes over"
        await self._stop_workers()
        await self._switch()
        return self._describe_comparison()

    async def _compare_copies(self, verdicts: Collection[Verdict]) -> None:
        """Compare copies of requests until the test has one of these verdicts, or time is up."""
        while self._test.verdict not in verdicts:
            sample = await self._get_sample()
            if sample is None:
                break
            await self._compare_versions(sample)
            self._check_memory()
        self._check_verdict()

    async def _shift_requests(self, canary: Canary) -> None:
        """Send a growing share of the live requests to the new version, and go on to compare copies."""
        self.phase, self.reason = Phase.CANARY, "workers of the new version start"
        self._deadline = float("inf")
        try:
            await canary.start()
        except StartFailed as exc:
            raise _Refused(f"version {self.candidate.new} does not start: {exc.message}") from exc
        comparing = asyncio.create_task(self._compare_copies({Verdict.REFUSE}))
        watching = asyncio.create_task(self._watch_canary(canary))
        tasks = {comparing, watching}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_canary(self, canary: Canary) -> None:
        """Wait for the end of the canary's last step. Raises _Refused and _Inconclusive."""
        version, shift = self.candidate.new, canary.shift
        while not shift.is_over:
            self.reason = f"version {version} gets {shift.share:g} % of the requests"
            await canary.wait_for_progress(_DEATH_CHECK_S)
            self._check_live_version()
            if canary.has_crashed:
                raise _Refused(f"version {version} crashes: its worker died with a live request")
        if shift.fault:
            raise _Refused(f"version {version} is taken back at {shift.steps[-1].share:g} %: {shift.fault}")
        await canary.finish()

    async def _start_workers(self) -> None:
        """Start a worker of each version, to run copies. Raises _Refused and _Inconclusive."""
        try:
            await self._new.start()
        except StartFailed as exc:
            raise _Refused(f"version {self.candidate.new} does not start: {exc.message}") from exc
        try:
            await self._old.start()
        except StartFailed as exc:
            raise _Inconclusive(f"no second worker of the old version starts: {exc.message}") from exc

    async def _get_sample(self) -> Sample | None:
        """Wait for a copied request, and until the live Op is idle.

        Return None when the configured time is over.
        """
        try:
            async with asyncio.timeout_at(self._to_loop_time(self._deadline)):
                sample = await self._tap.get_sample()
                while not self._is_idle():
                    self._check_live_version()
                    await asyncio.sleep(_IDLE_CHECK_S)
                self._check_live_version()
                return sample
        except TimeoutError:
            return None

    def _is_idle(self) -> bool:
        """Return whether no live request waits for either version."""
        return self._scheduler.is_idle(self.candidate.op) and (self._canary is None or self._canary.is_idle)

    @staticmethod
    def _to_loop_time(deadline: float) -> float:
        return asyncio.get_running_loop().time() + deadline - time.monotonic()

    def _check_live_version(self) -> None:
        """Raise _Inconclusive if the served version has changed since the upgrade began."""
        pool = self._scheduler.pools.get(self.candidate.op)
        if pool is None or pool.plan.files != self._live_files or not pool.size:
            raise _Inconclusive("the served version was loaded again or unloaded")

    async def _compare_versions(self, sample: Sample) -> None:
        """Run a copied request once with the new and twice with the old version. Record differences."""
        runs = [self._old.begin_copy(sample), self._new.begin_copy(sample)]
        try:
            first = await self._finish_old(runs[0])
            runs.append(self._old.begin_copy(sample))
            new = await self._finish_new(runs[1], runs[0].took_s)
            second = await self._finish_old(runs[2])
        finally:
            for run in runs:
                run.leave()
        tolerances = self._settings.tolerances
        change = await asyncio.to_thread(compare_answers, first, new, tolerances)
        noise = await asyncio.to_thread(compare_answers, first, second, tolerances)
        self._test.count_request(changed=change is not None, noise=noise is not None)
        for times, run in zip(self._times, runs, strict=False):
            times.append(run.took_s)
        if change is not None:
            self._kinds[change.kind] += 1
            if len(self._examples) < MAX_EXAMPLES:
                self._examples.append(change)

    async def _finish_old(self, run: MirroredRun) -> Any:
        """Return the answer of the old version. Raises _Inconclusive if its worker hangs."""
        await asyncio.wait({run.answer}, timeout=_OLD_LIMIT_S)
        if not run.answer.done():
            raise _Inconclusive(f"the old version has not answered a copied request in {_OLD_LIMIT_S:g} s")
        return run.answer.result()

    async def _finish_new(self, run: MirroredRun, old_s: float) -> Any:
        """Return the answer of the new version. Raises _Refused if its worker dies or hangs."""
        limit_s = max(self._settings.timeout_s, _HANG_FACTOR * old_s)
        until = time.monotonic() + limit_s
        while not run.answer.done() and time.monotonic() < until:
            self._check_deaths()
            await asyncio.wait({run.answer}, timeout=_DEATH_CHECK_S)
        self._check_deaths()
        if not run.answer.done():
            raise _Refused(
                f"version {self.candidate.new} hangs: no answer in {limit_s:.1f} s to a copied request that "
                f"the old version answered in {old_s:.3f} s"
            )
        return run.answer.result()

    def _check_deaths(self) -> None:
        if self._new.deaths > self._old.deaths:
            raise _Refused(f"version {self.candidate.new} crashes: its worker died with a copied request")

    def _check_memory(self) -> None:
        """Raise _Refused if the new version's memory has grown much more than the old version's."""
        self._memory = self._old.memory_bytes, self._new.memory_bytes
        if self._test.requests < _MEMORY_AFTER or not all(self._memory):
            return
        if self._first_memory is None:
            self._first_memory = self._memory
        old, new = (now - first for now, first in zip(self._memory, self._first_memory, strict=True))
        if new - max(0.0, old) > max(_LEAK_BYTES, _LEAK_SHARE * self._first_memory[1]):
            raise _Refused(
                f"version {self.candidate.new} leaks memory: it has grown by {new / 1e6:.0f} MB in "
                f"{self._test.requests - _MEMORY_AFTER + 1} requests, the old version by {old / 1e6:.0f} MB"
            )

    def _check_verdict(self) -> None:
        """Raise _Refused or _Inconclusive unless the comparison accepts the new version."""
        test = self._test
        if test.verdict is Verdict.REFUSE:
            raise _Refused(f"version {self.candidate.new} changes answers: {self._describe_comparison()}")
        if test.verdict is Verdict.CONTINUE and test.requests < MIN_REQUESTS:
            raise _Inconclusive(
                f"{test.requests} requests were compared in {self._settings.minutes:g} minutes, and "
                f"{MIN_REQUESTS} are needed"
            )

    def _describe_comparison(self) -> str:
        test = self._test
        return (
            f"{test.changed} of {test.requests} answers differ; {test.noise} differ between two runs of the "
            f"old version; the tolerance is {test.tolerance:g}"
        )

    async def _switch(self) -> None:
        """Serve the new version from now on, by loading the model from disk as the load API does."""
        name = self.candidate.name
        try:
            if isinstance(self._repository, ModelLoader):
                await self._repository.load_model(name)
            else:
                await self._repository.load([self.candidate.op])
        except LoadFailed as exc:
            raise _Inconclusive(f"the answers agree, but the load failed: {exc.message}") from exc
        pool = self._scheduler.pools.get(self.candidate.new_op)
        if pool is None or pool.plan.files != self.candidate.new_plan.files:
            raise _Inconclusive("the answers agree, but the files on disk have changed since, and are served")

    @property
    def compared(self) -> int:
        """Number of copied requests whose answers were compared."""
        return self._test.requests

    @property
    def changed(self) -> int:
        """Number of compared requests to which the new version gives another answer than the old version."""
        return self._test.changed

    @property
    def share(self) -> float:
        """Percent of the live requests that the new version gets in a canary."""
        return 0.0 if self._canary is None else self._canary.shift.share

    def build_report(self) -> dict[str, Any]:
        """Return the state of the upgrade as JSON values."""
        test, candidate = self._test, self.candidate
        is_over = self.result is not Result.RUNNING
        return {
            "model": candidate.name,
            "old_version": candidate.old,
            "new_version": candidate.new,
            "result": self.result,
            "phase": self.phase,
            "reason": self.reason,
            "began_at": round(self._began_at, 3),
            "settings": msgspec.to_builtins(self._settings),
            "requests": {
                "seen": self._tap.seen,
                "copied": self._tap.copied,
                "compared": test.requests,
                "goal": self._settings.requests,
            },
            "changed": test.changed,
            "noise": test.noise,
            "excess": test.excess,
            "excess_bound": test.compute_bound() if is_over else None,
            "evidence": test.evidence,
            "kinds": dict(self._kinds),
            "examples": [difference._asdict() for difference in self._examples],
            "latency_ms": dict(zip(("old", "new"), map(summarise, self._times), strict=True)),
            "memory_bytes": dict(zip(("old", "new"), map(int, self._memory), strict=True)),
            "canary": None if self._canary is None else self._canary.build_report(),
        }
