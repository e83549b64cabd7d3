"""The upgrades of a service: at most one at a time, and the last one of each model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from pipeline.errors import UnknownService
from pipeline.front.metrics.metrics import Metrics, Rows
from pipeline.front.repository import Repository
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.front.upgrades.candidate import UpgradeRefused, check_canary, find_candidate
from pipeline.front.upgrades.upgrade import CANCELLED, Result, Upgrade, UpgradeSettings


class Upgrades:
    """Begins and cancels upgrades of models, and finds the last upgrade of each model."""

    def __init__(self, scheduler: Scheduler, repository: Repository) -> None:
        self._scheduler = scheduler
        self._repository = repository
        self._upgrades: dict[str, Upgrade] = {}
        self._running: tuple[str, asyncio.Task[None] | None] | None = None  # model, and the task once it runs
        self._register_metrics(scheduler.metrics)

    def _register_metrics(self, metrics: Metrics) -> None:
        """Register the metrics of the last upgrade of each model."""

        def per_model(read: Callable[[Upgrade], float]) -> Callable[[], Rows]:
            return lambda: [(_label(upgrade), float(read(upgrade))) for upgrade in self._upgrades.values()]

        def states() -> Rows:
            for upgrade in self._upgrades.values():
                yield from (({**_label(upgrade), "state": r}, float(upgrade.result is r)) for r in Result)

        watch = metrics.watch
        watch("paddlewheel_upgrade_state", "1 for the state of a model's last upgrade.", states)
        watch(
            "paddlewheel_upgrade_compared_requests",
            "Requests of the last upgrade whose answers were compared.",
            per_model(lambda upgrade: upgrade.compared),
        )
        watch(
            "paddlewheel_upgrade_changed_answers",
            "Compared requests that the new version answers differently.",
            per_model(lambda upgrade: upgrade.changed),
        )
        watch(
            "paddlewheel_upgrade_share",
            "Percent of the live requests that the new version gets in a canary.",
            per_model(lambda upgrade: upgrade.share),
        )

    async def begin_upgrade(self, name: str, version: str, settings: UpgradeSettings) -> Upgrade:
        """Begin to upgrade a model to a version that is on disk, and return the upgrade.

        Raises UpgradeRefused (HTTP 400) for an unsuitable version, and while another upgrade runs. Raises
        UnknownService (404) for a model that is not served.
        """
        if self._running is not None:
            raise UpgradeRefused(f"an upgrade of model {self._running[0]!r} runs: wait for it, or cancel it")
        self._running = name, None
        try:
            candidate = await find_candidate(self._scheduler, self._repository, name, version)
            if settings.canary.shares:
                check_canary(self._scheduler, candidate)
            upgrade = Upgrade(self._scheduler, self._repository, candidate, settings)
        except BaseException:
            self._running = None
            raise
        self._upgrades[name] = self._repository.upgrade = upgrade
        if (shards := self._scheduler.shards) is not None:
            shards.pause()  # the front alone sees the requests to copy
        task = asyncio.create_task(upgrade.run())
        self._running = name, task
        task.add_done_callback(partial(self._release, upgrade))
        return upgrade

    def _release(self, upgrade: Upgrade, task: asyncio.Task[None]) -> None:
        self._running = None
        if (shards := self._scheduler.shards) is not None:
            shards.resume()
        if upgrade.result is Result.RUNNING:  # cancelled before its first step
            upgrade.end(Result.INCONCLUSIVE, CANCELLED)
        if not task.cancelled():
            task.result()  # a fault goes to the log

    def find_upgrade(self, name: str) -> Upgrade:
        """Return the last upgrade of a model. Raises UnknownService (HTTP 404) if there is none."""
        try:
            return self._upgrades[name]
        except KeyError:
            raise UnknownService(f"there was no upgrade of model {name[:100]!r}") from None

    def is_accepted(self, name: str) -> bool:
        """Return whether the last upgrade of a model was accepted, so that the new version is served."""
        return self.find_upgrade(name).result is Result.ACCEPTED

    def cancel(self, name: str) -> Upgrade:
        """Cancel the running upgrade of a model. Its result is inconclusive, and the old version stays.

        An upgrade that has ended keeps its result. Raises UnknownService (HTTP 404) if the model had no
        upgrade.
        """
        upgrade = self.find_upgrade(name)
        if self._running is not None and self._running[0] == name and self._running[1] is not None:
            self._running[1].cancel()
        return upgrade


def _label(upgrade: Upgrade) -> dict[str, str]:
    return {"model": upgrade.candidate.name, "version": upgrade.candidate.new}
