"""Instances between `concurrency` and `max_concurrency`: the rule, and an Op scaled in virtual time."""

from __future__ import annotations

import asyncio

from pipeline.api.app import App
from pipeline.api.examples import Examples
from pipeline.config.config_file import ServiceConfig
from pipeline.front.pool.scaling import GROW_AFTER_S, SHRINK_AFTER_S, ScaleRule
from tests.simulation.clients import Order
from tests.simulation.run import Run
from tests.simulation.scenario import FOLDER, Scenario, _models
from tests.simulation.workers import Mode, Speed

RUN_S = 0.3


def test_an_op_grows_when_requests_wait_long_enough() -> None:
    rule = ScaleRule(0.1, now=0.0)
    assert not rule.grows(0.2, 0.5)
    assert not rule.grows(0.05, 0.75)
    assert not rule.grows(0.2, 0.75 + GROW_AFTER_S / 2)
    assert rule.grows(0.2, 0.75 + GROW_AFTER_S)
    rule.note_change(3.0)
    assert not rule.grows(0.2, 3.5)


def test_an_op_shrinks_when_fewer_instances_were_enough_long_enough() -> None:
    rule = ScaleRule(0.1, now=0.0)
    assert not rule.shrinks(0.0, 3, remaining=2, now=30.0)
    assert not rule.shrinks(0.0, 2, remaining=2, now=SHRINK_AFTER_S)
    assert rule.shrinks(0.0, 2, remaining=2, now=30.0 + SHRINK_AFTER_S)
    assert not rule.shrinks(0.2, 0, remaining=2, now=31.0 + SHRINK_AFTER_S)


class ScaledRun(Run):
    """Two floods of requests with two quiet minutes between them."""

    def __init__(self, together: int) -> None:
        """together: instances in a process."""
        section = {"concurrency": together, "max_concurrency": 3 * together, "batch_size": 1}
        config = ServiceConfig.model_validate(
            {"http_port": 9292, "dag": {"is_thread_op": together > 1}, "op": {"a": section}}
        )
        app = App("sim", _models("single", {}), config, f"{FOLDER}/web_service.py", (), FOLDER, Examples())
        speeds = {"a": Speed((0.1, 0.3), RUN_S, 0.001)}
        super().__init__(
            Scenario(0, "single", app, speeds, {}, 4, 64_000, Mode.TOGETHER, [], [], [], load_s=0.0)
        )
        self.sizes: list[tuple[int, int]] = []  # while a flood is answered, and after the quiet minutes

    async def _serve(self) -> None:
        await self.scheduler.until_ready()
        pool = self.batchers["a"].pool
        for _ in range(2):
            self._flood([Order() for _ in range(40 * pool.size)])
            largest = 0
            while self.clients.open:
                largest = max(largest, pool.ready)
                await asyncio.sleep(0.1)
            await asyncio.sleep(2.5 * SHRINK_AFTER_S)
            self.sizes.append((largest, pool.ready))


def test_an_op_follows_its_load_between_its_limits() -> None:
    for together in (1, 2):
        run = ScaledRun(together)
        result = run.go()
        assert (result.violations, result.requests) == ([], 80 * together)
        assert all(sent.outcome == "answer" for sent in run.clients.requests.values())
        assert run.sizes == [(3 * together, together)] * 2
