"""UnderWay: the gRPC calls that are not answered yet, looked at while there are any.

Most are answered before that, and have cost no more than a place in a dict.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Protocol

_LOOK_EVERY_S = 0.02


class Handling(Protocol):
    """Who handles a call: `Place`."""

    def watch(self) -> bool: ...

    def time_out(self) -> None: ...


Began = dict[Handling, float]  # time.monotonic; in this order


class UnderWay:
    """Has the clients of calls watched that take long, and ends those calls whose message does not come."""

    def __init__(self, message_timeout_s: float) -> None:
        self._message_timeout_s = message_timeout_s
        self._young: Began = {}
        self._arriving: Began = {}
        self._looking: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, place: Handling) -> None:
        self._young[place] = time.monotonic()
        if self._looking is None:
            self._look_later()

    def end(self, place: Handling) -> None:
        if self._young.pop(place, None) is None:
            self._arriving.pop(place, None)

    def keep(self, task: asyncio.Task[None]) -> None:
        """Until it is done: of its tasks the loop has weak references."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        self._looking = None
        now = time.monotonic()
        for place, began in _taken_before(now - _LOOK_EVERY_S, self._young):
            if not place.watch():
                self._arriving[place] = began
        for place, _ in _taken_before(now - self._message_timeout_s, self._arriving):
            place.time_out()
        if self._young or self._arriving:
            self._look_later()


def _taken_before(moment: float, places: Began) -> Iterator[tuple[Handling, float]]:
    """Take out those that began before the moment."""
    for place, began in list(places.items()):
        if began > moment:
            break
        del places[place]
        yield place, began
