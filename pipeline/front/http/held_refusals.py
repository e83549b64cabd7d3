"""Held-back refusals: a client that retries at once after a refusal gets the next one a moment later."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

HELD_S = 0.05  # at most: until the tick before
TICKS_PER_S = 100  # those of a tick are given together: a turn of the loop for each costs more than it does
AT_ONCE_S = 0.05  # a client that retries within this time has not waited as its refusal said
GIVEN_A_TURN = 128  # of the loop, which has others to serve

Refuse = Callable[[], None]
"""Gives a refusal, if its client is still there."""


class HeldRefusals:
    """Refusals that the connections of a port hold back, one each at most, in the order in which they are
    sent.

    All share one timer. Clients that retry without a pause would otherwise be refused so often that little
    CPU is left for answers.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[float, Refuse]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, refuse: Refuse, now: float) -> None:
        """Give this refusal HELD_S after `now` (time.monotonic), or a little earlier."""
        self._held.append((int((now + HELD_S) * TICKS_PER_S) / TICKS_PER_S, refuse))
        if self._timer is None:
            self._set_timer(now)

    def give_all(self) -> None:
        """Give what is held now, without delay."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        refusals, self._held = self._held, deque()
        for _, refuse in refusals:
            refuse()

    def _set_timer(self, now: float) -> None:
        wait_s = max(0.0, self._held[0][0] - now)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._give_due)

    def _give_due(self) -> None:
        now = time.monotonic()
        for _ in range(min(GIVEN_A_TURN, len(self._held))):
            if self._held[0][0] > now:
                break
            self._held.popleft()[1]()
        self._timer = None
        if self._held:
            self._set_timer(now)
