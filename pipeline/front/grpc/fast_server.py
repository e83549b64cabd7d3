"""FastServer: a gRPC server that takes less CPU per call than grpc.aio's, by private names of grpcio.

grpc.aio starts three tasks for each call. Here a task accepts a call of its method, responds, and accepts the
next. `docs/decisions/grpc-server.md` has the figures.

grpc.aio also decodes the path of each call in the task that accepts calls: one path that is not UTF-8 ends
the server. Here calls are accepted by method, and calls of other paths are rejected without decoding.

Importing this module raises ImportError or AttributeError for a grpcio without the private names, or of a
version that was not tested. The gRPC port then uses grpc.aio's own server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import grpc
import grpc.aio
from grpc._cython.cygrpc import (  # type: ignore[import-not-found]
    AioServer,
    ExecuteBatchError,
    ReceiveCloseOnServerOperation,
    SendInitialMetadataOperation,
    SendMessageOperation,
    SendStatusFromServerOperation,
    StatusCode,
    _handle_stream_stream_rpc,
    _schedule_rpc_coro,
    _ServicerContext,
    execute_batch,
    get_working_loop,
)
from grpc.aio._server import Server

from pipeline.front.grpc.rpc_handler import CallContext, MethodHandlers

log = logging.getLogger(__name__)

Respond = Callable[[CallContext], Awaitable[bytes]]
Operations = tuple[Any, ...]

_MAX_IDLE_TASKS = 32  # of a method; further tasks end after their call

_TESTED_VERSIONS = ("1.85.",)  # of grpcio: in others the private names may mean something else
if not grpc.__version__.startswith(_TESTED_VERSIONS):
    raise ImportError(f"tested versions: {', '.join(version + '*' for version in _TESTED_VERSIONS)}")
for _name in ("_make_request_call_future", "_request_call", "_request_registered_call", "is_running"):
    getattr(AioServer, _name)  # AttributeError if AioServer would never call the methods below


class FastServer(Server):
    """Drop-in replacement for grpc.aio's server that uses less CPU per unary call.

    It serves only methods that are registered by name. Generic handlers and interceptors are not supported.
    """

    def __init__(self, handlers: MethodHandlers, options: Sequence[tuple[str, Any]]) -> None:
        """Create the server, without opening ports.

        handlers: the handlers of all gRPC methods. options: gRPC channel arguments.
        """
        # Instead of Server.__init__, which would create an AioServer.
        self._loop = get_working_loop()
        self._server = _FastAioServer(self._loop, None, (), None, tuple(options), None)
        self._server.handlers = handlers
        self._server.tasks = set()
        self._server.add_registered_method_handlers(handlers.by_name)


class _FastAioServer(AioServer):  # type: ignore[misc]
    """The Cython server that FastServer wraps: runs tasks that accept and serve the calls of each method."""

    handlers: MethodHandlers
    tasks: set[asyncio.Task[None]]  # the event loop holds weak references only

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[None]:
        """Start to accept the calls of a method; with method None, the calls of all unknown methods.

        Called by grpc.aio. Returns a future that fails when the server stops: grpc.aio expects that error
        from its pending accept.
        """
        stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        _Acceptor(self, method, stopped).start_task()
        return stopped

    def start_task(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        """Run a coroutine as a task of the server, and keep a reference until it ends."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class _Acceptor:
    """Accepts and serves the calls of one gRPC method, or rejects the calls of all unknown methods.

    At least one task waits for the next call while others respond.
    """

    def __init__(self, server: _FastAioServer, method: bytes | None, stopped: asyncio.Future[None]) -> None:
        self._server = server
        self._method = method
        self._stopped = stopped
        self._idle_tasks = 0
        name = "" if method is None else method.decode()
        self._stream = server.handlers.streams.get(name)
        unary = server.handlers.unary.get(name)
        self._respond: Respond = _reject_unknown_method if unary is None else unary.respond

    def start_task(self) -> None:
        """Start another task that accepts calls."""
        self._server.start_task(self._accept_calls(), "rpc-accept")

    async def _accept_calls(self) -> None:
        """Accept and serve calls one after the other.

        Ends when the server stops, or enough other tasks wait for calls.
        """
        serve = self._serve_unary if self._stream is None else self._start_stream
        try:
            while self._server.is_running() and self._idle_tasks < _MAX_IDLE_TASKS:
                await serve(await self._next_call())  # a variable would keep the call until the next
        except Exception as exc:
            if not self._stopped.done():
                self._stopped.set_exception(exc)

    async def _next_call(self) -> Any:
        """Wait for the next gRPC call and return it. Starts another task if none is left to wait."""
        self._idle_tasks += 1
        try:
            if self._method is None:
                call = await self._server._request_call()
            else:
                call = await self._server._request_registered_call(self._method)
        finally:
            self._idle_tasks -= 1
        if not self._idle_tasks:
            self.start_task()
        return call

    async def _serve_unary(self, call: Any) -> None:
        """Serve a unary call: get the response of its handler, and send it."""
        loop = asyncio.get_running_loop()
        context = _UnaryContext(call, loop, self._server)
        context.begin_unary()
        if self._server.handlers.serves_sequences():
            await context.watch_before_read()
        try:
            operations = await self._respond_while_connected(context)
            if not context.watched:
                operations += (ReceiveCloseOnServerOperation(0),)
            await _execute(call, operations, loop)
        finally:
            context.finish()

    async def _respond_while_connected(self, context: _UnaryContext) -> Operations:
        """Call the handler. Return the gRPC operations that send its response; none if the call has ended."""
        try:
            response = await self._respond(context)
        except grpc.aio.BaseError:  # aborted, or the client has left
            return ()
        except asyncio.CancelledError:
            if not context.client_left:
                raise
            context.task.uncancel()
            return ()
        finally:
            context.responding = False
        return (
            SendInitialMetadataOperation(None, 0),
            SendMessageOperation(response, 0),
            SendStatusFromServerOperation(context.trailing_metadata(), StatusCode.ok, "", 0),
        )

    async def _start_stream(self, call: Any) -> None:
        """Serve a streaming call in a task of its own, by grpc.aio's code."""
        loop = asyncio.get_running_loop()
        responding = _handle_stream_stream_rpc(self._stream, call, loop)
        name = (self._method or b"").decode()
        self._server.start_task(_schedule_rpc_coro(responding, call, loop, name), "rpc-stream")


class _UnaryContext(CallContext):
    """Context of a unary call of FastServer. Cancels the task of a slow call when its client leaves."""

    watched = False
    client_left = False
    responding = True  # until the handler has returned

    def __init__(self, call: Any, loop: asyncio.AbstractEventLoop, server: _FastAioServer) -> None:
        handlers = server.handlers
        super().__init__(_ServicerContext(call, None, None, loop), handlers.bounds, handlers.open_calls)
        self.task: asyncio.Task[Any] = asyncio.current_task(loop)  # type: ignore[assignment]
        self._call = call
        self._server = server

    def become_slow(self) -> None:
        super().become_slow()
        if not self.watched:
            self._watch_client()

    async def watch_before_read(self) -> None:
        """Watch the call from its start, so that gRPC drops the message of a call that is already cancelled.

        gRPC may hand over a cancelled call after a later call of the same client. In a sequence, the state of
        the cancelled request would replace the state of the later request (docs/decisions/grpc-server.md).
        """
        self._watch_client()
        await asyncio.sleep(0)  # until the new task has begun to watch

    def _watch_client(self) -> None:
        self.watched = True
        self._server.start_task(self._wait_for_client(), "rpc-watch")

    async def _wait_for_client(self) -> None:
        """Wait until the call ends, and cancel its task if the client has left before the response."""
        closing = ReceiveCloseOnServerOperation(0)
        await _execute(self._call, (closing,), asyncio.get_running_loop())
        if closing.cancelled() and self.responding:
            self.client_left = True
            self.task.cancel()


async def _reject_unknown_method(context: CallContext) -> bytes:
    """End a call of an unknown method with UNIMPLEMENTED."""
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


async def _execute(call: Any, operations: Operations, loop: asyncio.AbstractEventLoop) -> None:
    """Run gRPC operations of a call, such as sending its response. Errors are logged."""
    try:
        if operations:
            await execute_batch(call, operations, loop)
    except ExecuteBatchError as exc:
        log.debug("a client has left: %s", exc)
    except Exception:
        log.exception("A fault of ours in ending a gRPC call")
