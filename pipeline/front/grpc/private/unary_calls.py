"""How unary gRPC calls are answered, and what is done about those that take long.

grpc.aio makes two tasks for each call: one handles it, the other waits for its client to leave. Here one task
handles many calls, and only a call that takes long is watched: that its client has not left is learned in
the same step as that its answer is sent.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
from grpc._cython.cygrpc import (  # type: ignore[import-not-found]
    AbortError,
    ExecuteBatchError,
    ReceiveCloseOnServerOperation,
    SendInitialMetadataOperation,
    SendMessageOperation,
    SendStatusFromServerOperation,
    StatusCode,
    _receive_message,
    execute_batch,
)

from pipeline.errors import OUR_FAULT, ServingError
from pipeline.front.grpc.guard import RpcGuard
from pipeline.front.grpc.private.call_context import Bounds, CallContext, create_context

log = logging.getLogger(__name__)

Handler = Callable[[bytes, grpc.aio.ServicerContext[bytes, bytes]], Awaitable[bytes]]

_OK, _INTERNAL = StatusCode.ok, StatusCode.internal
_LOOK_EVERY_S = 0.02


class _Stage(enum.Enum):
    """How far a call is: its message arrives, the handler has it, its answer is with gRPC."""

    ARRIVING = enum.auto()
    HANDLED = enum.auto()
    SENT = enum.auto()


class Place:
    """Where one unary call of a method after another is answered.

    Made and used by one task, which is cancelled while it handles a call whose client leaves. guard: None
    where anyone may call. Where the guard receives no messages, the handler gets an empty one.
    """

    def __init__(
        self, method: str, handler: Handler, under_way: UnderWay, bounds: Bounds, guard: RpcGuard | None
    ) -> None:
        self._method = method
        self._guard = guard
        self._receives = guard is None or guard.receives(method)
        self._handler = handler
        self._under_way = under_way
        self._bounds = bounds
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._call: Any = None  # that is under way
        self._context: Any = None  # its CallContext
        self._stage = _Stage.ARRIVING
        self._size = 0  # of its answer
        self._slow = False  # `UnderWay` has seen it
        self._watched = self._left = self._late = False

    async def answer(self, call: Any) -> None:
        """Give the call to the handler, and the client what that returns."""
        self._call = call
        self._context = context = create_context(call, self._loop, self._bounds)
        self._stage = _Stage.ARRIVING
        self._slow = self._watched = self._left = self._late = False
        self._under_way.begin(self)
        try:
            operations = await self._handle(call, context)
            self._stage = _Stage.SENT
            if self._slow:
                self._bounds.untaken.hold(context, self._size)
            if not self._watched:
                operations += (ReceiveCloseOnServerOperation(0),)
            await _perform(call, operations, self._loop)
        finally:
            if self._slow:
                self._bounds.untaken.let_go(context)
            self._call = self._context = None
            self._under_way.end(self)

    async def _handle(self, call: Any, context: CallContext) -> tuple[Any, ...]:
        """What ends the call; nothing where it has ended. Sets the size of its answer."""
        self._size = 0
        if self._guard is not None and (error := self._guard.refusal(self._method, context)) is not None:
            return _refused(error)
        try:
            message = await _receive_message(call, self._loop) if self._receives else b""
        finally:
            if self._slow:
                self._bounds.arriving.end(context)
                self._under_way.arrived(self)
        if self._late:
            return ()
        if message is None:  # unless its client has left, it has sent none
            return _status(_INTERNAL, "the call has no message")
        self._stage = _Stage.HANDLED
        try:
            handling = self._handler(message, context)
            message = (
                b""  # grpcio keeps an AbortError, and so the variables of the frames that it went through
            )
            answer = await handling
        except (AbortError, ExecuteBatchError):  # it has sent a status itself, or its client has left
            return ()
        except asyncio.CancelledError:
            if self._task is None or not self._left:
                raise
            self._task.uncancel()
            return ()
        except Exception:
            log.exception("A fault of ours in a gRPC method")
            return _status(_INTERNAL, OUR_FAULT.message)
        self._size = len(answer)
        ending = SendStatusFromServerOperation(context.trailing_metadata(), _OK, "", 0)
        return SendInitialMetadataOperation(None, 0), SendMessageOperation(answer, 0), ending

    def attend(self) -> bool:
        """Take notice, once, that the call takes long. Returns whether its message is still to come."""
        self._slow = True
        if self._stage is _Stage.SENT:
            self._bounds.untaken.hold(self._context, self._size)
            return False
        self._watched = True
        self._under_way.keep(self._loop.create_task(self._cancel_when_left(self._call), name="rpc-watch"))
        if self._stage is _Stage.HANDLED:
            return False
        self._bounds.arriving.begin(self._context)
        return True

    async def _cancel_when_left(self, call: Any) -> None:
        closing = ReceiveCloseOnServerOperation(0)
        await _perform(call, (closing,), self._loop)
        # Before its message is there the task waits for that alone, which then fails by itself.
        handled = self._call is call and self._stage is _Stage.HANDLED
        if closing.cancelled() and handled and self._task is not None:
            self._left = True
            self._task.cancel()

    def time_out(self) -> None:
        """End the call: its message has not arrived in time."""
        self._late = True
        told = _status(
            StatusCode.deadline_exceeded, "the message did not arrive within limits.body_timeout_s"
        )
        telling = _send_status(self._call, told, self._bounds)
        self._under_way.keep(self._loop.create_task(telling, name="rpc-late"))


class UnderWay:
    """The unary calls that are not over yet, looked at while there are any.

    Has their clients watched that take long, and their memory bounded, and ends those whose message does not
    come. Most are over before that, and have cost no more than a place in a dict.
    """

    def __init__(self, message_timeout_s: float) -> None:
        self._message_timeout_s = message_timeout_s
        self._young: dict[Place, float] = {}  # time.monotonic; in this order
        self._arriving: dict[Place, float] = {}  # the same, of those that wait for their message
        self._looking: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, place: Place) -> None:
        self._young[place] = time.monotonic()
        if self._looking is None:
            self._look_later()

    def arrived(self, place: Place) -> None:
        """A message is there that has taken long to come."""
        self._arriving.pop(place, None)

    def end(self, place: Place) -> None:
        self._young.pop(place, None)

    def keep(self, task: asyncio.Task[None]) -> None:
        """Hold on to a task until it is done: the loop has weak references."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        self._looking = None
        now = time.monotonic()
        for place, began in _taken_before(now - _LOOK_EVERY_S, self._young):
            if place.attend():
                self._arriving[place] = began
        for place, _ in _taken_before(now - self._message_timeout_s, self._arriving):
            place.time_out()
        if self._young or self._arriving:
            self._look_later()


def _taken_before(moment: float, places: dict[Place, float]) -> Iterator[tuple[Place, float]]:
    """Take the calls out that began before the moment."""
    for place, began in list(places.items()):
        if began > moment:
            break
        del places[place]
        yield place, began


async def refuse(call: Any, bounds: Bounds) -> None:
    """Answer a call of a method that there is not."""
    refusal = _status(StatusCode.unimplemented, "Method not found!")
    await _send_status(call, (*refusal, ReceiveCloseOnServerOperation(0)), bounds)


async def refuse_on_metadata(call: Any, error: ServingError, bounds: Bounds) -> None:
    """Answer a call that its guard refuses."""
    await _send_status(call, (*_refused(error), ReceiveCloseOnServerOperation(0)), bounds)


def _refused(error: ServingError) -> tuple[Any, ...]:
    return _status(getattr(StatusCode, error.grpc_code.lower()), error.message)


async def _send_status(call: Any, operations: tuple[Any, ...], bounds: Bounds) -> None:
    loop = asyncio.get_running_loop()
    context = create_context(call, loop, bounds)
    bounds.untaken.hold(context, 0)
    try:
        await _perform(call, operations, loop)
    finally:
        bounds.untaken.let_go(context)


def _status(code: int, details: str) -> tuple[Any, ...]:
    return SendInitialMetadataOperation(None, 0), SendStatusFromServerOperation((), code, details, 0)


async def _perform(call: Any, operations: tuple[Any, ...], loop: asyncio.AbstractEventLoop) -> None:
    try:
        if operations:
            await execute_batch(call, operations, loop)
    except ExecuteBatchError as exc:
        log.debug("a client has left: %s", exc)
    except Exception:
        log.exception("A fault of ours in ending a gRPC call")
