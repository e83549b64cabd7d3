"""gRPC server that accepts every call by a known method name, never by the bytes of its path.

grpc.aio decodes the path of each call in the task that accepts calls. One path that is no UTF-8 ends that
task and with it the server. Here each method accepts its calls by name. Calls of other paths are answered
UNIMPLEMENTED without a look at the path. No public name of grpc.aio 1.85 does this: generic handlers and
interceptors run behind the decoding. The server therefore uses private names of grpcio. Importing this module
fails where one of them is missing.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
import grpc.aio
from grpc._cython.cygrpc import (  # type: ignore[import-not-found]
    AbortError,
    AioServer,
    ExecuteBatchError,
    ReceiveCloseOnServerOperation,
    SendInitialMetadataOperation,
    SendMessageOperation,
    SendStatusFromServerOperation,
    StatusCode,
    _handle_stream_stream_rpc,
    _receive_message,
    _schedule_rpc_coro,
    execute_batch,
    get_working_loop,
)
from grpc.aio._server import Server

from pipeline.config.config_file import Limits
from pipeline.errors import OUR_FAULT, ServingError
from pipeline.front.grpc.guard import RpcGuard
from pipeline.front.grpc.private.call_context import Bounds, CallContext, create_context
from pipeline.front.grpc.private.untaken import Arriving, Untaken
from pipeline.front.metrics.access_log import AccessLog

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
        """Return the operations that end the call; none where it has ended. Sets the size of its answer."""
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
        self._under_way.hold(self._loop.create_task(self._cancel_when_left(self._call), name="rpc-watch"))
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
        status = _status(
            StatusCode.deadline_exceeded, "the message did not arrive within limits.body_timeout_s"
        )
        sending = _send_status(self._call, status, self._bounds)
        self._under_way.hold(self._loop.create_task(sending, name="rpc-late"))


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

    def hold(self, task: asyncio.Task[None]) -> None:
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


Methods = Mapping[str, "grpc.RpcMethodHandler[bytes, bytes]"]

_MOST_FREE = 32  # takers of a method that wait for a call; those that were needed for a moment end


for _used in ("_make_request_call_future", "_request_call", "_request_registered_call", "is_running"):
    getattr(AioServer, _used)  # AttributeError: what is overridden below would never be called


class RpcCalls(Server):
    """grpc.aio's server with these methods, by full name.

    A call whose message has not arrived after `body_timeout_s` is ended (slow loris). guard: None where
    anyone may call. ports: ports that will be opened.
    """

    def __init__(
        self,
        methods: Methods,
        guard: RpcGuard | None,
        limits: Limits,
        ports: Collection[int],
        access_log: AccessLog,
        options: Sequence[tuple[str, Any]],
    ) -> None:
        # In place of its own constructor, which makes its own kind of AioServer.
        self._loop = get_working_loop()
        self._server = calls = _NamedCalls(self._loop, None, (), None, tuple(options), None)
        calls.ended = asyncio.Event()
        calls.methods = methods
        calls.guard = guard
        calls.streams = set()
        calls.under_way = UnderWay(limits.body_timeout_s)
        calls.bounds = Bounds(Arriving(limits, ports, access_log), Untaken(limits, ports, access_log))
        self._server.add_registered_method_handlers(dict(methods))

    async def stop(self, grace: float | None) -> None:
        """Take no more calls, and end the streams that have no request in flight; cancel after the grace."""
        for context in tuple(self._server.streams):
            if context.on_stop is not None:
                context.on_stop()
        await super().stop(grace)

    async def until_ended(self) -> None:
        """Return when calls are no longer taken: `stop` was called, or there is a fault in grpcio or here.

        Its own `wait_for_termination` waits on after a fault.
        """
        await self._server.ended.wait()


class _Method:
    """A method whose calls are taken.

    name: None stands for all paths that are no method's. over: done when its calls are no longer taken. free:
    tasks of it that wait for a call.
    """

    def __init__(self, name: bytes | None, handler: Any, over: asyncio.Future[None]) -> None:
        self.name = name
        self.handler = handler
        self.over = over
        self.free = 0


class _NamedCalls(AioServer):  # type: ignore[misc]
    """grpc.aio's inner server, with tasks for each method that take a call and answer it, then the next.

    While one task of a method waits for a call there are enough of them. methods: handlers by name, set
    before the start. ended: set when the calls of a method are no longer taken.
    """

    ended: asyncio.Event
    methods: Methods
    guard: RpcGuard | None
    streams: set[CallContext]  # of the calls that are open
    under_way: UnderWay
    bounds: Bounds

    def _make_request_call_future(self, name: bytes | None) -> asyncio.Future[None]:
        """Begin to take calls: grpc.aio asks once for each method at the start, and with None for others.

        When the server stops, the wait for a call ends with an exception that grpc.aio expects here.
        """
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        over.add_done_callback(lambda _: self.ended.set())
        self._begin_taking(_Method(name, None if name is None else self.methods[name.decode()], over))
        return over

    def _begin_taking(self, method: _Method) -> None:
        taking = self._take_calls(method)
        self.under_way.hold(asyncio.get_running_loop().create_task(taking, name="rpc-calls"))

    async def _take_calls(self, method: _Method) -> None:
        answer = self._make_responder(method)
        try:
            while self.is_running() and method.free < _MOST_FREE:
                await answer(await self._next_call(method))  # kept in no variable: it lives on in that
        except Exception as exc:
            if not method.over.done():
                method.over.set_exception(exc)

    async def _next_call(self, method: _Method) -> Any:
        method.free += 1
        try:
            if method.name is None:
                call = await self._request_call()
            else:
                call = await self._request_registered_call(method.name)
        finally:
            method.free -= 1
        if not method.free:
            self._begin_taking(method)
        return call

    def _make_responder(self, method: _Method) -> Callable[[Any], Awaitable[None]]:
        handler, guard = method.handler, self.guard
        if method.name is None or handler is None:
            return partial(refuse, bounds=self.bounds)
        name = method.name.decode()
        if not handler.request_streaming:
            return Place(name, handler.unary_unary, self.under_way, self.bounds, guard).answer

        async def begin(call: Any) -> None:
            loop = asyncio.get_running_loop()
            context = create_context(call, loop, self.bounds)
            if guard is not None and (error := guard.refusal(name, context)) is not None:
                await refuse_on_metadata(call, error, self.bounds)
                return
            answering = _handle_stream_stream_rpc(_with(context, handler), call, loop)
            method_name = (method.name or b"").decode()
            task = loop.create_task(_schedule_rpc_coro(answering, call, loop, method_name))
            self.streams.add(context)
            task.add_done_callback(lambda _: self._end_stream(context))
            self.under_way.hold(task)

        return begin

    def _end_stream(self, context: CallContext) -> None:
        self.streams.discard(context)
        context.on_stop = None  # it holds the stream, which holds the context
        context.over()


def _with(context: CallContext, handler: Any) -> Any:
    """Return the handler of a stream, called with this context in place of grpc.aio's."""

    async def stream(requests: Any, _: Any) -> None:
        await handler.stream_stream(requests, context)
        context.ending()

    return grpc.stream_stream_rpc_method_handler(stream)
