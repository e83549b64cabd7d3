"""Starts: lets so many worker processes start at a time as there are cores."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from pipeline.front.pool.worker_process import WorkerProcess

log = logging.getLogger(__name__)

# A start that takes longer makes room for the next one: it may wait for something else than a core, perhaps
# for a worker that has not been started yet. `start_timeout` ends it.
HOLD_S = 10.0


class _Turn(NamedTuple):
    colleagues: Callable[[], int]
    begin: Callable[[], WorkerProcess | None]


class Starts:
    """The starts of all Ops of a service, each in its turn.

    Processes that all start at once import the same frameworks on the same cores, and none is ready before
    the last. First comes the Op with the fewest processes, so that each Op has one soon.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._turns: list[_Turn] = []
        self._starting: set[WorkerProcess] = set()
        self._holding: dict[WorkerProcess, asyncio.TimerHandle] = {}
        self._ready = 0  # of those that have started since nothing waited
        self._choosing = False

    def ask(self, colleagues: Callable[[], int], begin: Callable[[], WorkerProcess | None]) -> None:
        """Have `begin` called when there is room, not before the next turn of the loop.

        It returns the process it has started, or None where there is no need of one any more; `over` has to
        follow. colleagues: how many processes that can work the Op has by then.
        """
        self._turns.append(_Turn(colleagues, begin))
        self._choose_soon()

    def over(self, process: WorkerProcess) -> None:
        """Note the end of a start: the process is ready, or dead."""
        if process not in self._starting:
            return
        self._starting.remove(process)
        self._ready += process.ready_at > 0
        self._make_room(process)
        if self._turns:
            log.info(
                "Workers: %d ready, %d starting, %d waiting for one of %d cores",
                self._ready, len(self._starting), len(self._turns), self._at_once,
            )  # fmt: skip

    def _make_room(self, process: WorkerProcess) -> None:
        timer = self._holding.pop(process, None)
        if timer is not None:
            timer.cancel()
            self._choose_soon()

    def _choose_soon(self) -> None:
        if not self._choosing:
            self._choosing = True
            asyncio.get_running_loop().call_soon(self._choose)

    def _choose(self) -> None:
        self._choosing = False
        loop = asyncio.get_running_loop()
        while self._turns and len(self._holding) < self._at_once:
            turn = min(self._turns, key=lambda waiting: waiting.colleagues())
            self._turns.remove(turn)
            process = turn.begin()
            if process is not None:
                self._starting.add(process)
                self._holding[process] = loop.call_later(HOLD_S, self._make_room, process)
        if not self._starting and not self._turns:
            self._ready = 0
