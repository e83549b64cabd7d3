"""Method handlers: the methods of dialects as grpc.aio calls them, with guard, bounds and error statuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import grpc
import grpc.aio

from pipeline.errors import OUR_FAULT
from pipeline.front.grpc.call_context import CallContext
from pipeline.front.grpc.guard import RpcGuard
from pipeline.front.grpc.slow_clients import ClientBounds

log = logging.getLogger(__name__)

Methods = Mapping[str, "grpc.RpcMethodHandler[bytes, bytes]"]  # by full name
GrpcContext = grpc.aio.ServicerContext[bytes, bytes]


class UnaryMethod:
    """Serves the calls of a unary method."""

    def __init__(
        self,
        name: str,
        handler: Callable[[bytes, CallContext], Awaitable[bytes]],
        guard: RpcGuard | None,
        bounds: ClientBounds,
    ) -> None:
        self._name = name
        self._handler = handler
        self._guard = guard
        self._receives = guard is None or guard.receives(name)  # else the handler gets an empty message
        self._bounds = bounds

    async def serve(self, _: Any, grpc_context: GrpcContext) -> bytes:
        """Serve a call of grpc.aio. Registered as stream-unary: unary handlers start after the message."""
        context = CallContext(grpc_context, self._bounds)
        context.begin_unary()
        _call_when_sent(context.finish)
        try:
            return await self.respond(context)
        except grpc.aio.InternalError:
            raise asyncio.CancelledError from None  # the client has left; grpc.aio would log an error

    async def respond(self, context: CallContext) -> bytes:
        """Return the response of a call. Raises grpc.aio.AbortError when the call has ended with a status."""
        if self._guard is not None:
            await _check_guard(self._guard, self._name, context)
        message = await context.read_unary() if self._receives else b""
        handling = self._handler(message, context)
        message = b""  # grpcio keeps an AbortError, and with it the variables of the frames it passed
        try:
            response = await handling
        except grpc.aio.BaseError:
            raise
        except Exception:
            log.exception("A fault of ours in a gRPC method")
            await context.abort(grpc.StatusCode.INTERNAL, OUR_FAULT.message)
        context.begin_last_response(len(response))
        return response


class StreamMethod:
    """Serves the calls of a bidirectional stream."""

    def __init__(
        self,
        name: str,
        handler: Callable[[Any, CallContext], Awaitable[None]],
        guard: RpcGuard | None,
        bounds: ClientBounds,
        open_streams: set[CallContext],
    ) -> None:
        self._name = name
        self._handler = handler
        self._guard = guard
        self._bounds = bounds
        self._open_streams = open_streams

    async def serve(self, requests: Any, grpc_context: GrpcContext) -> None:
        """Serve a call of grpc.aio."""
        context = CallContext(grpc_context, self._bounds)
        _call_when_sent(partial(self._finish, context))
        if self._guard is not None:
            await _check_guard(self._guard, self._name, context)
        self._open_streams.add(context)
        await self._handler(requests, context)
        context.begin_status()

    def _finish(self, context: CallContext) -> None:
        self._open_streams.discard(context)
        context.on_stop = None  # breaks the cycle of stream and context
        context.finish()


def _call_when_sent(callback: Callable[[], None]) -> None:
    """Call back when grpc.aio has sent the status of the current call: its task ends then.

    `add_done_callback` of the context would do the same, but leaves a reference cycle for each call.
    """
    task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
    task.add_done_callback(lambda _: callback())


async def _check_guard(guard: RpcGuard, method: str, context: CallContext) -> None:
    error = guard.refusal(method, context)
    if error is not None:
        await context.abort(getattr(grpc.StatusCode, error.grpc_code), error.message)


class MethodHandlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not subscriptable at run time
    """The handlers of all methods, found by the path of a call."""

    def __init__(self, methods: Methods, guard: RpcGuard | None, bounds: ClientBounds) -> None:
        self.bounds = bounds
        self.open_streams: set[CallContext] = set()
        self.unary: dict[str, UnaryMethod] = {}
        self.streams: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}
        self.by_name: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}
        for name, method in methods.items():
            handler: Any
            if method.request_streaming:
                handler = method.stream_stream
                stream = StreamMethod(name, handler, guard, bounds, self.open_streams)
                self.streams[name] = self.by_name[name] = grpc.stream_stream_rpc_method_handler(stream.serve)
            else:
                handler = method.unary_unary
                unary = self.unary[name] = UnaryMethod(name, handler, guard, bounds)
                self.by_name[name] = grpc.stream_unary_rpc_method_handler(unary.serve)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self.by_name.get(handler_call_details.method)
