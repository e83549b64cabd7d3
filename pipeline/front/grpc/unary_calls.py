"""How unary gRPC calls are answered, one after another, and those watched that take long.

grpc.aio makes two tasks for each call: one handles it, the other waits for its client to leave. Here one task
handles many calls, and only a call that takes long is watched: that its client has not left is learned in
the same step as that its answer is sent.
"""

from __future__ import annotations

import asyncio
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

from pipeline.errors import OUR_FAULT
from pipeline.front.grpc.call_context import Bounds, CallContext, context_of

log = logging.getLogger(__name__)

Handler = Callable[[bytes, grpc.aio.ServicerContext[bytes, bytes]], Awaitable[bytes]]

_OK, _INTERNAL = StatusCode.ok, StatusCode.internal
_LOOK_EVERY_S = 0.02


class Place:
    """Answers calls of one method in one task, which is cancelled when the client of its call leaves."""

    def __init__(self, handler: Handler, under_way: UnderWay, bounds: Bounds) -> None:
        self._handler = handler
        self._under_way = under_way
        self._bounds = bounds
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._call: Any = None  # that is handled
        self._arrived = False  # its message
        self._watched = self._left = self._late = False

    async def answer(self, call: Any) -> None:
        """Give the call to the handler, and the client what that returns."""
        self._call = call
        self._arrived = self._watched = self._left = self._late = False
        context = context_of(call, self._loop, self._bounds)
        self._under_way.begin(self)
        try:
            operations, size = await self._handle(call, context)
        finally:
            self._call = None
            self._under_way.end(self)
        if not self._watched:
            operations += (ReceiveCloseOnServerOperation(0),)
        await _send(context, size, call, operations)

    async def _handle(self, call: Any, context: CallContext) -> tuple[tuple[Any, ...], int]:
        """What ends the call, and the size of its answer; nothing where it has ended."""
        arriving = self._bounds.arriving
        arriving.begin(context)
        try:
            message = await _receive_message(call, self._loop)
        finally:
            arriving.end(context)
        if self._late:
            return (), 0
        if message is None:  # unless its client has left, it has sent none
            return _status(_INTERNAL, "the call has no message"), 0
        self._arrived = True
        try:
            answer = await self._handler(message, context)
            ending = SendStatusFromServerOperation(context.trailing_metadata(), _OK, "", 0)
            operations = SendInitialMetadataOperation(None, 0), SendMessageOperation(answer, 0), ending
            return operations, len(answer)
        except (AbortError, ExecuteBatchError):  # it has sent a status itself, or its client has left
            return (), 0
        except asyncio.CancelledError:
            if self._task is None or not self._left:
                raise
            self._task.uncancel()
            return (), 0
        except Exception:
            log.exception("A fault of ours in a gRPC method")
            return _status(_INTERNAL, OUR_FAULT.message), 0

    def watch(self) -> bool:
        """Notice from now on when the client leaves. Returns whether the call's message has arrived."""
        self._watched = True
        self._under_way.keep(self._loop.create_task(self._cancel_when_left(self._call), name="rpc-watch"))
        return self._arrived

    async def _cancel_when_left(self, call: Any) -> None:
        closing = ReceiveCloseOnServerOperation(0)
        await _perform(call, (closing,), self._loop)
        # Before its message is there the task waits for that alone, which then fails by itself.
        if closing.cancelled() and self._call is call and self._arrived and self._task is not None:
            self._left = True
            self._task.cancel()

    def time_out(self) -> None:
        """End the call: its message has not arrived in time."""
        self._late = True
        told = _status(
            StatusCode.deadline_exceeded, "the message did not arrive within limits.body_timeout_s"
        )
        context = context_of(self._call, self._loop, self._bounds)
        telling = _send(context, 0, self._call, told)
        self._under_way.keep(self._loop.create_task(telling, name="rpc-late"))


Began = dict[Place, float]
"""Calls by where they are handled, with the time.monotonic at which they began; in this order."""


class UnderWay:
    """Has the clients of calls watched that take long, and ends those calls whose message does not come.

    Most calls are answered before it looks, and have cost no more than a place in a dict.
    """

    def __init__(self, message_timeout_s: float) -> None:
        self._message_timeout_s = message_timeout_s
        self._young: Began = {}  # nobody watches their clients yet
        self._arriving: Began = {}  # watched, their messages are not there yet
        self._looking: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, place: Place) -> None:
        self._young[place] = time.monotonic()
        if self._looking is None:
            self._look_later()

    def end(self, place: Place) -> None:
        if self._young.pop(place, None) is None:
            self._arriving.pop(place, None)

    def keep(self, task: asyncio.Task[None]) -> None:
        """Hold a task until it is done: the loop has weak references of its tasks."""
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


async def refuse(call: Any, bounds: Bounds) -> None:
    """Answer a call of a method that there is not."""
    operations = *_status(StatusCode.unimplemented, "Method not found!"), ReceiveCloseOnServerOperation(0)
    await _send(context_of(call, asyncio.get_running_loop(), bounds), 0, call, operations)


async def _send(context: CallContext, size: int, call: Any, operations: tuple[Any, ...]) -> None:
    """size: of the message among the operations."""
    untaken = context.bounds.untaken
    untaken.hold(context, size)
    try:
        await _perform(call, operations, asyncio.get_running_loop())
    finally:
        untaken.let_go(context)


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


def _taken_before(moment: float, places: Began) -> Iterator[tuple[Place, float]]:
    """Take out the calls that began before the moment."""
    for place, began in list(places.items()):
        if began > moment:
            break
        del places[place]
        yield place, began
