"""CallContext: metadata, deadline and message stream of a gRPC call, as its handler uses them."""

from __future__ import annotations

import string
import urllib.parse
from collections.abc import Callable
from typing import Any, NamedTuple

from grpc._cython.cygrpc import _ServicerContext  # type: ignore[import-not-found]

from pipeline.front.grpc.private.untaken import Arriving, Untaken

# Of a refusal's text, as gRPC writes it (in percent-encoding): it is a header, and of more than 8 KiB of them
# a client's gRPC may lose the call without a word of the reason.
_MOST_DETAILS = 4096
_AS_THEY_ARE = string.digits + string.ascii_letters + string.punctuation.replace("%", "") + " "


class Bounds(NamedTuple):
    """Bound what gRPC holds for clients: messages of which a part is here, answers that are not taken."""

    arriving: Arriving
    untaken: Untaken


class CallContext(_ServicerContext):  # type: ignore[misc]
    """grpc.aio's context of a call, which has the messages and refusals that it sends and awaits bounded.

    on_stop: called once when the server stops; a stream sets it.
    """

    bounds: Bounds
    on_stop: Callable[[], None] | None = None
    _ready_bytes = 0
    _writing = False
    _over = False

    def ready(self, size: int) -> None:
        """An answer of a stream waits for its turn to be written: its bytes are held, too."""
        self._ready_bytes += size
        if self._writing:
            self.bounds.untaken.hold(self, size)

    async def read(self) -> Any:
        self.bounds.arriving.begin(self)
        try:
            return await super().read()
        finally:
            self.bounds.arriving.end(self)

    async def write(self, message: bytes) -> None:
        self._writing = True
        self.bounds.untaken.hold(self, self._ready_bytes)
        try:
            await super().write(message)
        finally:
            self._writing = False
            self._ready_bytes -= len(message)
            self.bounds.untaken.let_go(self)

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        self.bounds.untaken.hold(self, 0)
        try:
            await super().abort(code, _cut(details), trailing_metadata)
        finally:
            self.bounds.untaken.let_go(self)

    def ending(self) -> None:
        """The status of a stream is sent from now on, until the call is `over`."""
        if not self._over:
            self.bounds.untaken.hold(self, 0)

    def over(self) -> None:
        self._over = True
        self.bounds.untaken.let_go(self)


def create_context(call: Any, loop: Any, bounds: Bounds) -> CallContext:
    context = CallContext(call, None, None, loop)
    context.bounds = bounds
    return context


def _cut(details: str) -> str:
    shown = details[:_MOST_DETAILS]
    while len(urllib.parse.quote(shown, safe=_AS_THEY_ARE)) > _MOST_DETAILS:
        shown = shown[: len(shown) // 2]
    return shown if len(shown) == len(details) else f"{shown}..."
