"""The open calls of a gRPC server: which of them a stop waits for, and which streams it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.front.grpc.rpc_handler import CallContext

_CHECK_INTERVAL_S = 0.1
_QUIET_CHECKS = 10  # 1 s: gRPC hands accepted calls over within milliseconds


class OpenCalls:
    """The calls that handlers of a gRPC server have begun, until their responses are sent."""

    def __init__(self) -> None:
        self._calls: dict[CallContext, Callable[[], None] | None] = {}  # with the callback of a stop
        self._stopping = False

    def add_call(self, call: CallContext) -> None:
        """Count a call as open, until `remove_call`."""
        self._calls[call] = None

    def remove_call(self, call: CallContext) -> None:
        """Stop counting a call, because it has ended."""
        self._calls.pop(call, None)

    def call_on_stop(self, call: CallContext, callback: Callable[[], None]) -> None:
        """Call `callback` when the server stops during the call; immediately if it is already stopping."""
        self._calls[call] = callback
        if self._stopping:
            callback()

    def begin_stop(self) -> None:
        """Call the stop callbacks of the open calls. Callbacks that are registered later run immediately."""
        self._stopping = True
        for callback in tuple(self._calls.values()):
            if callback is not None:
                callback()

    async def wait_until_quiet(self) -> None:
        """Wait until no call has been open for 1 s. The open calls are checked at regular intervals."""
        checks = 0
        while checks < _QUIET_CHECKS:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            checks = 0 if self._calls else checks + 1
