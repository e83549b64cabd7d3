"""CallContext: what handlers of gRPC calls are given, which tells of the answers that it sends."""

from __future__ import annotations

from typing import Any

from grpc._cython.cygrpc import _ServicerContext  # type: ignore[import-not-found]

from pipeline.server.doors.rpc_untaken import Untaken


class CallContext(_ServicerContext):  # type: ignore[misc]
    """grpc.aio's own, whose messages and refusals are bounded while their client does not take them."""

    untaken: Untaken
    _ready_bytes = 0
    _writing = False

    def ready(self, size: int) -> None:
        """A message of a stream is there, for `write` once those before it are written."""
        self._ready_bytes += size
        if self._writing:
            self.untaken.hold(self, size)

    async def write(self, message: bytes) -> None:
        self._writing = True
        self.untaken.hold(self, self._ready_bytes)
        try:
            await super().write(message)
        finally:
            self._writing = False
            self._ready_bytes -= len(message)
            self.untaken.let_go(self)

    async def abort(self, *status: Any) -> None:
        self.untaken.hold(self, 0)
        try:
            await super().abort(*status)
        finally:
            self.untaken.let_go(self)


def context_of(call: Any, loop: Any, untaken: Untaken) -> CallContext:
    context = CallContext(call, None, None, loop)
    context.untaken = untaken
    return context
