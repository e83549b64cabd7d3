"""BackOff: when the next process of an Op is started after one has died, and when to give up."""

from __future__ import annotations

import time
from collections.abc import Iterable

from pipeline.front.pool.worker_process import WorkerProcess

FAILED_STARTS_ALLOWED = 3
STABLE_AFTER_S = 10.0  # a process that lived this long starts the back-off anew
LOOP_AFTER_DEATHS = 3  # of processes that were ready and died before their first answer
BACKOFF_S = 0.1
MAX_BACKOFF_S = 10.0


class BackOff:
    """Counts the starts and deaths of one Op's processes, and draws the conclusion for the next start."""

    def __init__(self) -> None:
        self._failed_starts = 0
        self._quick_deaths = 0
        self._fruitless_deaths = 0  # since a process has answered anything
        self._was_ready = False

    def started(self) -> None:
        """Note that a process has become ready."""
        self._failed_starts = 0
        self._was_ready = True

    def died(self, process: WorkerProcess) -> None:
        """Note the death of a process that was ready."""
        self._fruitless_deaths = 0 if process.served else self._fruitless_deaths + 1

    def note_failed_start(self, process: WorkerProcess) -> bool:
        """Note that a process has ended before it was ready; returns whether another try is of no use."""
        self._failed_starts += 1
        final = process.failure is not None and process.failure.final
        # What raises on the very first start raises on every one; later a reason may pass (a full disk, say).
        raises = process.failure is not None and not self._was_ready
        return final or raises or self._failed_starts >= FAILED_STARTS_ALLOWED

    def pause_s(self, process: WorkerProcess) -> float:
        """Seconds until the successor of a process: none for the first death in a while, then ever longer.

        Not longer and longer after one that has answered requests: callers wait for its successor.
        """
        if process.ready_at and time.monotonic() - process.ready_at > STABLE_AFTER_S:
            self._quick_deaths = 0
            return 0.0
        if process.served:
            self._quick_deaths = 0
        self._quick_deaths += 1
        return min(MAX_BACKOFF_S, BACKOFF_S * 2.0 ** (self._quick_deaths - 1))

    def in_crash_loop(self, processes: Iterable[WorkerProcess]) -> bool:
        """Whether one process after the other becomes ready and dies before it has answered anything.

        processes: those that are there now. The loop is over once one of them has answered a request, or has
        lived for STABLE_AFTER_S.
        """
        if self._fruitless_deaths < LOOP_AFTER_DEATHS:
            return False
        stable_since = time.monotonic() - STABLE_AFTER_S
        return not any(p.served or 0 < p.ready_at < stable_since for p in processes)
