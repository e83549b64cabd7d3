"""The gRPC server as we run it: it takes every call by a name that we know, never by the bytes of its path.

grpc.aio decodes the path of each call in the task that accepts calls; one path that is no UTF-8 ends that
task and with it the server. Here each method is asked for its calls by name, and what was sent to any other
path is answered UNIMPLEMENTED without a look at it. No public name of grpc.aio 1.85 does this: generic
handlers and interceptors are asked behind that decoding. So names are used that grpcio keeps to itself;
importing this fails where one of them is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
from grpc._cython.cygrpc import (  # type: ignore[import-not-found]
    AioServer,
    _handle_stream_stream_rpc,
    _schedule_rpc_coro,
    get_working_loop,
)
from grpc.aio._server import Server

from pipeline.config.config_file import Limits
from pipeline.front.grpc.guard import RpcGuard
from pipeline.front.grpc.private.arriving import Arriving
from pipeline.front.grpc.private.call_context import Bounds, CallContext, create_context
from pipeline.front.grpc.private.unary_calls import Place, UnderWay, refuse, refuse_on_metadata
from pipeline.front.grpc.private.untaken import Untaken
from pipeline.front.metrics.access_log import AccessLog

Methods = Mapping[str, "grpc.RpcMethodHandler[bytes, bytes]"]

_MOST_FREE = 32  # takers of a method that wait for a call; those that were needed for a moment end


for _used in ("_make_request_call_future", "_request_call", "_request_registered_call", "is_running"):
    getattr(AioServer, _used)  # AttributeError: what is overridden below would never be called


class RpcCalls(Server):
    """grpc.aio's server of the given methods, by full name.

    A call whose message has not arrived after `body_timeout_s` is ended (slow loris). guard: None where
    anyone may call. ports: those that will be opened.
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
        self.under_way.keep(asyncio.get_running_loop().create_task(taking, name="rpc-calls"))

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
            told = (method.name or b"").decode()
            task = loop.create_task(_schedule_rpc_coro(answering, call, loop, told))
            self.streams.add(context)
            task.add_done_callback(lambda _: self._end_stream(context))
            self.under_way.keep(task)

        return begin

    def _end_stream(self, context: CallContext) -> None:
        self.streams.discard(context)
        context.on_stop = None  # it holds the stream, which holds the context
        context.over()


def _with(context: CallContext, handler: Any) -> Any:
    """The handler of a stream, given the context in place of grpc.aio's."""

    async def stream(requests: Any, _: Any) -> None:
        await handler.stream_stream(requests, context)
        context.ending()

    return grpc.stream_stream_rpc_method_handler(stream)
