"""The gRPC server as we run it: it takes every call by a name that we know, never by the bytes of its path.

grpc.aio decodes the path of each call in the task that accepts calls; one path that is no UTF-8 ends that
task and with it the server. Here each method has a task of its own, in which its name is known, and what was
sent to any other path is answered UNIMPLEMENTED without a look at it. No public name of grpc.aio 1.85 does
this: generic handlers and interceptors are asked behind that decoding. So names are used that grpcio keeps to
itself; importing this fails where one of them is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from grpc._cython.cygrpc import (  # type: ignore[import-not-found]
    AioServer,
    SendInitialMetadataOperation,
    StatusCode,
    _handle_rpc,
    _schedule_rpc_coro,
    _send_error_status_from_server,
    get_working_loop,
)
from grpc.aio._server import Server

Methods = Mapping[str, "grpc.RpcMethodHandler[bytes, bytes]"]


_WATCH_EVERY_S = 0.5
_TOO_LATE = -1.0
_TIMED_OUT = StatusCode.deadline_exceeded


for _used in ("_make_request_call_future", "_request_call", "_request_registered_call"):
    getattr(AioServer, _used)  # AttributeError: what is overridden below would never be called


class RpcCalls(Server):
    """grpc.aio's server of the given methods, by full name.

    A call whose message has not arrived after `message_timeout_s` is cancelled.
    """

    def __init__(
        self, methods: Methods, message_timeout_s: float, options: Sequence[tuple[str, Any]]
    ) -> None:
        # In place of its own constructor, which makes its own kind of AioServer.
        self._loop = get_working_loop()
        self._server = calls = _NamedCalls(self._loop, None, (), None, tuple(options), None)
        calls.ended = asyncio.Event()
        calls.arriving = {}
        calls.running = set()
        calls.methods = {name: calls.telling(method) for name, method in methods.items()}
        self._server.add_registered_method_handlers(dict(calls.methods))
        self._message_timeout_s = message_timeout_s

    async def until_ended(self) -> None:
        """Return when calls are no longer taken: `stop` was called, or there is a fault in grpcio or here.

        Its own `wait_for_termination` waits on after a fault.
        """
        await self._server.ended.wait()

    async def watch(self) -> None:
        """Cancel what takes too long to arrive (slow loris), until cancelled itself."""
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            self._server.cancel_begun_before(time.monotonic() - self._message_timeout_s)


class _NamedCalls(AioServer):  # type: ignore[misc]
    """methods: handlers by name, set before the start. running: of its tasks the loop has weak references.

    arriving: the tasks of calls that no handler has been given yet, and when they began. ended: set when the
    calls of a method are no longer taken.
    """

    methods: Methods
    running: set[asyncio.Task[None]]
    arriving: dict[asyncio.Task[Any] | None, float]
    ended: asyncio.Event

    def _make_request_call_future(self, name: bytes | None) -> asyncio.Task[None]:
        """Called once for each method at the start, and with None for all other paths."""
        return asyncio.get_running_loop().create_task(self._take_calls(name), name="rpc-calls")

    async def _take_calls(self, name: bytes | None) -> None:
        """Until the server stops, which ends the wait for a call with an exception that it knows."""
        loop = asyncio.get_running_loop()
        told = "" if name is None else name.decode()
        try:
            while True:
                call = await (self._request_call() if name is None else self._request_registered_call(name))
                answering = self._answer(call, _handle_rpc(told, self, (), call, loop, False))
                task = loop.create_task(_schedule_rpc_coro(answering, call, loop, told))
                self.running.add(task)
                task.add_done_callback(self.running.discard)
        finally:
            self.ended.set()

    async def _answer(self, call: Any, handling: Any) -> None:
        task = asyncio.current_task()
        self.arriving[task] = time.monotonic()
        try:
            await handling
        except asyncio.CancelledError:
            if self.arriving.get(task) is not _TOO_LATE:
                raise
            told = "the message did not arrive within limits.body_timeout_s"
            head, loop = SendInitialMetadataOperation((), 0), asyncio.get_running_loop()
            await _send_error_status_from_server(call, _TIMED_OUT, told, (), head, loop)
        finally:
            self.arriving.pop(task, None)

    def telling(self, method: Any) -> Any:
        """The same method; its call is no longer arriving once it is called."""
        arriving = self.arriving
        if method.request_streaming:

            async def stream(requests: Any, context: Any) -> Any:
                arriving.pop(asyncio.current_task(), None)
                return await method.stream_stream(requests, context)

            return grpc.stream_stream_rpc_method_handler(stream)

        async def unary(data: bytes, context: Any) -> Any:
            arriving.pop(asyncio.current_task(), None)
            return await method.unary_unary(data, context)

        return grpc.unary_unary_rpc_method_handler(unary)

    def cancel_begun_before(self, moment: float) -> None:
        for task, began in list(self.arriving.items()):
            if began is _TOO_LATE or task is None:
                continue
            if began > moment:
                break  # they stand in the order in which they began
            self.arriving[task] = _TOO_LATE
            task.cancel()

    def resolve_handler(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self.methods.get(details.method)
