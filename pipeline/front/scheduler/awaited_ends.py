"""AwaitedEnds: the requests that must have ended before their Op may be unloaded."""

from __future__ import annotations

import asyncio


class AwaitedEnds:
    """Those that began before an instant (time.monotonic). open_: how many of them have not ended yet."""

    def __init__(self, began_before: float, open_: int) -> None:
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._began_before = began_before
        self._open = open_

    def note(self, began: float) -> None:
        """A request has ended that began then."""
        if began < self._began_before:
            self._open -= 1
            if self._open == 0 and not self._over.done():
                self._over.set_result(None)

    async def over(self, timeout_s: float) -> None:
        """Returns when all have ended, or after so long."""
        await asyncio.wait({self._over}, timeout=timeout_s)
