"""Event loop with virtual time: it never waits, and nothing in it depends on the machine."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable
from typing import Any, Protocol

TURN_S = 20e-6  # virtual seconds that each turn of the loop costs
MAX_TURNS = 100_000  # far more than a run needs; a loop that spins ends the run here
WALL_CLOCK_S = 1.7e9  # virtual seconds between 1970 and the start of a run


class Livelock(Exception):
    """The loop spins, or waits for nothing."""


class Watched(Protocol):
    """A descriptor as the selector sees it."""

    readable: bool
    writable: bool


class Clock:
    """Virtual time, with the functions of the module `time` that the front process calls."""

    def __init__(self, now: float) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return WALL_CLOCK_S + self.now

    def time_ns(self) -> int:
        return int(self.time() * 1e9)

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)

    perf_counter_ns = monotonic_ns


class Selector:
    """Selector over simulated descriptors. It reports ready ones in random order, and skips time ahead."""

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        find: Callable[[int], Watched | None],
        max_turns: float = MAX_TURNS,
    ) -> None:
        """find: returns the open descriptor of a number."""
        self._max_turns = max_turns
        self._clock = clock
        self._rng = rng
        self._find = find
        self.turns = 0
        self.keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = _number(fileobj)
        key = self.keys[number] = selectors.SelectorKey(fileobj, number, events, data)
        return key

    modify = register

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self.keys.pop(_number(fileobj))

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self.keys[_number(fileobj)]

    def select(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        if self.turns > self._max_turns:
            raise Livelock(
                f"the loop has made {self._max_turns} turns in {self._clock.now:.3f} virtual seconds"
            )
        self._clock.now += TURN_S
        ready = [(key, events) for key in self.keys.values() if (events := self._ready(key))]
        if ready:
            self._rng.shuffle(ready)
        elif timeout is None:
            raise Livelock("the loop waits without a timer")
        else:
            self._clock.now += timeout
        return ready

    def _ready(self, key: selectors.SelectorKey) -> int:
        watched = self._find(key.fd)
        if watched is None:
            raise Livelock(f"the loop watches descriptor {key.fd}, which is closed")
        reads, writes = key.events & selectors.EVENT_READ, key.events & selectors.EVENT_WRITE
        return (reads if reads and watched.readable else 0) | (writes if writes and watched.writable else 0)

    def close(self) -> None:
        self.keys.clear()


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop on a virtual clock. Calls in threads run at once."""

    def __init__(self, clock: Clock, selector: Selector) -> None:
        self._clock = clock
        super().__init__(selector)  # type: ignore[arg-type]

    def time(self) -> float:
        return self._clock.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as exc:
            future.set_exception(exc)
        return future

    def timers(self) -> list[asyncio.TimerHandle]:
        """Return the timers that are still to fire."""
        return [timer for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]

    def _make_self_pipe(self) -> None:
        """Need no pipe: no signal and no thread wakes this loop."""

    def _close_self_pipe(self) -> None:
        """Have no pipe to close."""

    def _write_to_self(self) -> None:
        """Need no wake-up."""


def _number(fileobj: Any) -> int:
    return fileobj if isinstance(fileobj, int) else fileobj.fileno()
