"""gRPC methods of the dialects: context of a call, check of API keys, and base class of the handlers."""

from __future__ import annotations

import asyncio
import logging
import string
import time
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, ClassVar, Never

import grpc
import grpc.aio

from pipeline.api.restrictions import RestrictedApis
from pipeline.errors import OUR_FAULT, Overloaded, RestrictedApi, ServingError, Unauthenticated, detach
from pipeline.front.dag_run import Answer, DagRun, Request
from pipeline.front.grpc.open_calls import OpenCalls
from pipeline.front.grpc.outgoing import OutgoingMessages
from pipeline.front.grpc.slow_clients import ClientBounds
from pipeline.front.metrics.access_log import AccessLog
from pipeline.front.scheduler.admission import CALLER, KeyRing, find_key, name_caller, name_peer
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.front.tracing.request_trace import TRACEPARENT, RequestTrace, describe_answer

log = logging.getLogger(__name__)


# gRPC sends the text of a status percent-encoded in a header. Clients reject headers over 8 KiB.
_MAX_DETAILS_BYTES = 4096
_UNESCAPED = string.digits + string.ascii_letters + string.punctuation.replace("%", "") + " "


class CallContext:
    """The context of a gRPC call: wraps grpc.aio's context, and counts the bytes buffered for the call.

    The counts keep the server within its memory limits, see `ClientBounds`. Contexts are compared by
    identity. Other attributes are those of `grpc.aio.ServicerContext`.
    """

    _slow = False  # a unary call that takes longer than 20 ms
    _finished = False
    _reader: asyncio.Task[Any] | None = None  # waits for the message of a unary call
    _timed_out = False
    _response_bytes: int | None = None  # of the last message, while gRPC sends it
    _queued_bytes = 0  # messages of a stream that are not written yet
    _writing = False
    trace: RequestTrace | None = None  # of the call's request, whose response `finish` ends

    def __init__(
        self, context: grpc.aio.ServicerContext[bytes, bytes], bounds: ClientBounds, open_calls: OpenCalls
    ) -> None:
        self._context = context
        self._bounds = bounds
        self._open_calls = open_calls
        open_calls.add_call(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def get_traceparent(self) -> str:
        """Return the value of the metadata key `traceparent`; empty without it."""
        for key, value in self._context.invocation_metadata() or ():
            if _bytes(key).lower() == TRACEPARENT:
                return _bytes(value).decode("latin-1")
        return ""

    def call_on_stop(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the server stops during the call; immediately if it is already stopping."""
        self._open_calls.call_on_stop(self, callback)

    def peer(self) -> str:
        """Return the client's address as gRPC writes it, such as "ipv4:10.0.0.1:40000"."""
        return self._context.peer()

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline of the client; None without a deadline."""
        return self._context.time_remaining()

    async def read_unary(self) -> bytes:
        """Return the request message of a unary call.

        Ends the call with DEADLINE_EXCEEDED if no message arrives within `limits.body_timeout_s`.
        """
        self._reader = asyncio.current_task()
        try:
            message = await self._context.read()
        except asyncio.CancelledError:
            if not self._timed_out or self._reader is None:
                raise
            self._reader.uncancel()
            await self.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED, "the message did not arrive within limits.body_timeout_s"
            )
        finally:
            self._reader = None
            if self._slow:
                self._bounds.messages.remove(self)
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]
            await self.abort(grpc.StatusCode.INTERNAL, "the call has no message")
        return message

    def become_slow(self) -> None:
        """Count the bytes of a unary call from now on, because it takes longer than 20 ms.

        Fast calls are not counted, because that would cost time.
        """
        self._slow = True
        if self._reader is not None:
            self._bounds.messages.add(self, unary=True)
        elif self._response_bytes is not None:
            self._bounds.responses.add(self, self._response_bytes)

    def time_out_message(self) -> None:
        """End the call that waits in `read_unary`, because its message has not arrived in time."""
        if self._reader is not None:
            self._timed_out = True
            self._reader.cancel()

    async def read(self) -> Any:
        """Return the next request message of a stream; `grpc.aio.EOF` after the last message."""
        self._bounds.messages.add(self, unary=False)
        try:
            return await self._context.read()
        finally:
            self._bounds.messages.remove(self)

    def queue_message(self, size: int) -> None:
        """Count a response message of a stream that waits to be written. size: in bytes."""
        self._queued_bytes += size
        if self._writing:
            self._bounds.responses.add(self, size)

    async def write(self, message: bytes) -> None:
        """Send a response message of a stream, which `queue_message` has counted."""
        self._writing = True
        self._bounds.responses.add(self, self._queued_bytes)
        try:
            await self._context.write(message)
        finally:
            self._writing = False
            self._queued_bytes -= len(message)
            self._bounds.responses.remove(self)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> Never:
        """End the call with an error status. Always raises grpc.aio.AbortError.

        details: text for the client.
        """
        self._bounds.responses.add(self, 0)
        try:
            await self._context.abort(code, _truncate(details))
        finally:
            self._bounds.responses.remove(self)
        raise AssertionError("abort raises AbortError")

    def begin_unary(self) -> None:
        """Watch a unary call until `finish`. If it takes longer than 20 ms, `become_slow` is called."""
        self._bounds.slow_calls.add(self)

    def begin_last_response(self, size: int) -> None:
        """Count the bytes of the last response message and the status until `finish`, if the call is slow.

        size: bytes of the message.
        """
        self._response_bytes = size
        if self._slow:
            self._bounds.responses.add(self, size)

    def begin_status(self) -> None:
        """Count the final status of a stream as bytes that the client has not read, until `finish`."""
        if not self._finished:
            self._bounds.responses.add(self, 0)

    def finish(self) -> None:
        """Stop watching and counting the call, because it has ended."""
        self._finished = True
        self._open_calls.remove_call(self)
        self._bounds.slow_calls.remove(self)
        self._bounds.responses.remove(self)
        if self.trace is not None:
            self.trace.end_response()


def _truncate(details: str) -> str:
    """Return the text of a status, cut to the size that gRPC clients accept in a header."""
    text = details[:_MAX_DETAILS_BYTES]
    while len(urllib.parse.quote(text, safe=_UNESCAPED)) > _MAX_DETAILS_BYTES:
        text = text[: len(text) // 2]
    return text if len(text) == len(details) else f"{text}..."


class RpcGuard:
    """Checks the API key of each gRPC call, and the headers that restricted APIs require (as in Triton).

    open_methods: methods that need no key. apis: the API of each method, by full name of the method.
    """

    def __init__(
        self,
        keys: KeyRing | None,
        restricted: RestrictedApis,
        apis: Mapping[str, str],
        access_log: AccessLog,
        open_methods: Collection[str],
    ) -> None:
        self._keys = keys
        self._restricted = restricted
        self._apis = apis
        self._access_log = access_log
        self._open_methods = open_methods

    def receives(self, method: str) -> bool:
        """Return whether the server reads the request messages of a method.

        False for a method that needs no key while other methods do: unauthenticated clients must not use
        memory.
        """
        return self._keys is None or method not in self._open_methods

    def refusal(self, method: str, context: CallContext) -> ServingError | None:
        """Check a call's API key and restricted API. Return the error, or None if the call is allowed.

        method: full name. Sets the context variable `CALLER` to the client of the key.
        """
        headers = [(_bytes(key), _bytes(value)) for key, value in context.invocation_metadata() or ()]
        CALLER.set(None)
        try:
            if self._keys is not None and method not in self._open_methods:
                CALLER.set(self._keys.find(find_key(headers)))
            self._restricted.check(self._apis[method], headers)
        except (Unauthenticated, RestrictedApi) as error:
            self._access_log.refused("grpc", error, name_caller(context.peer()))
            return error
        return None


def _bytes(value: str | bytes) -> bytes:
    """Return a metadata value as bytes."""
    return value if isinstance(value, bytes) else value.encode()


Methods = Mapping[str, "grpc.RpcMethodHandler[bytes, bytes]"]  # by full name
GrpcContext = grpc.aio.ServicerContext[bytes, bytes]


class UnaryMethod:
    """Serves the calls of one unary gRPC method: checks the API key, reads the message, calls the handler."""

    def __init__(
        self,
        name: str,
        handler: Callable[[bytes, CallContext], Awaitable[bytes]],
        guard: RpcGuard | None,
        bounds: ClientBounds,
        open_calls: OpenCalls,
    ) -> None:
        self._name = name
        self._handler = handler
        self._guard = guard
        self._receives = guard is None or guard.receives(name)  # else the handler gets an empty message
        self._bounds = bounds
        self._open_calls = open_calls

    async def serve(self, _: Any, grpc_context: GrpcContext) -> bytes:
        """Serve a call that grpc.aio's own server has accepted. Returns the encoded response.

        Registered as a stream-unary method: grpc.aio starts unary handlers only after the message has
        arrived.
        """
        context = CallContext(grpc_context, self._bounds, self._open_calls)
        context.begin_unary()
        _call_when_sent(context.finish)
        try:
            return await self.respond(context)
        except grpc.aio.InternalError:
            raise asyncio.CancelledError from None  # the client has left; grpc.aio would log an error

    async def respond(self, context: CallContext) -> bytes:
        """Return the encoded response of a call.

        Raises grpc.aio.AbortError if the call has ended with a status.
        """
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
    """Serves the calls of one bidirectional streaming gRPC method: checks the API key, calls the handler."""

    def __init__(
        self,
        name: str,
        handler: Callable[[Any, CallContext], Awaitable[None]],
        guard: RpcGuard | None,
        bounds: ClientBounds,
        open_calls: OpenCalls,
    ) -> None:
        self._name = name
        self._handler = handler
        self._guard = guard
        self._bounds = bounds
        self._open_calls = open_calls

    async def serve(self, requests: Any, grpc_context: GrpcContext) -> None:
        """Serve a streaming call of grpc.aio until its stream has ended. requests: the incoming messages."""
        context = CallContext(grpc_context, self._bounds, self._open_calls)
        _call_when_sent(context.finish)
        if self._guard is not None:
            await _check_guard(self._guard, self._name, context)
        await self._handler(requests, context)
        context.begin_status()


def _call_when_sent(callback: Callable[[], None]) -> None:
    """Call `callback` when grpc.aio has sent the status of the current call: its asyncio task ends then.

    `add_done_callback` of the context would do the same, but leaves a reference cycle for each call.
    """
    task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
    task.add_done_callback(lambda _: callback())


async def _check_guard(guard: RpcGuard, method: str, context: CallContext) -> None:
    """Check the API key and the restricted API of a call; end the call with an error if they forbid it."""
    error = guard.refusal(method, context)
    if error is not None:
        await context.abort(getattr(grpc.StatusCode, error.grpc_code), error.message)


class MethodHandlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not subscriptable at run time
    """The gRPC method handlers of all dialects (request formats), by path of the method.

    grpc.aio's own server uses the object as a generic handler. FastServer uses its tables of methods.
    """

    def __init__(
        self,
        methods: Methods,
        guard: RpcGuard | None,
        bounds: ClientBounds,
        serves_sequences: Callable[[], bool],
    ) -> None:
        """Collect the handlers. serves_sequences: returns whether the order of a client's calls matters."""
        self.bounds = bounds
        self.serves_sequences = serves_sequences
        self.open_calls = OpenCalls()
        self.unary: dict[str, UnaryMethod] = {}
        self.streams: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}
        self.by_name: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}
        for name, method in methods.items():
            handler: Any
            if method.request_streaming:
                handler = method.stream_stream
                stream = StreamMethod(name, handler, guard, bounds, self.open_calls)
                self.streams[name] = self.by_name[name] = grpc.stream_stream_rpc_method_handler(stream.serve)
            else:
                handler = method.unary_unary
                unary = self.unary[name] = UnaryMethod(name, handler, guard, bounds, self.open_calls)
                self.by_name[name] = grpc.stream_unary_rpc_method_handler(unary.serve)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Return the handler of a call's method; None if there is no such method. Called by grpc.aio."""
        return self.by_name.get(handler_call_details.method)


class RpcHandler(ABC):
    """Base class of the gRPC side of a dialect (request format such as KServe v2).

    It runs the inference of a call, and returns the encoded response or error.
    """

    name: ClassVar[str]  # of the endpoint in metrics and log

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._access_log = scheduler.access_log

    @abstractmethod
    async def _refuse(self, context: CallContext, error: ServingError) -> bytes:
        """Return the encoded error response of a failed request, or end the call with a status by `_end`."""

    async def _predict(
        self, method: str, read: Callable[[bytes, CallContext], Request], data: bytes, context: CallContext
    ) -> bytes:
        """Run the inference of a unary call. Return its encoded response.

        method: name of the gRPC method for the log. read: builds the inference request from the message
        `data`; raises ServingError for an invalid message.
        """
        began = time.monotonic()
        request: Request | None = None
        answer: Answer
        try:
            try:
                request = read(data, context)
            finally:
                data = b""  # free the message of a rejected request
            request.endpoint = self.name
            if self._scheduler.traces.is_on:
                self._scheduler.begin_trace(request, "GRPC", began, context.get_traceparent())
            answer = await self._scheduler.infer(request)
        except ServingError as exc:
            answer = detach(exc)
        except Exception:
            log.exception("A fault of ours in %s", method)
            answer = OUR_FAULT
        if request is not None and request.trace is not None:
            request.trace.begin_response(describe_answer(answer))
            context.trace = request.trace
        if self._access_log.logs_requests:
            error = answer if isinstance(answer, ServingError) else None
            self._access_log.log_request(
                self.name, name_peer(context.peer(), CALLER.get()), method, began, error
            )
        if isinstance(answer, ServingError):
            self._access_log.refused(self.name, answer, name_caller(context.peer()))
            message = await self._refuse(context, answer)
        else:
            self._access_log.answered(self.name)
            message = bytes(answer[0])
        if request is not None and (timings := request.timings) is not None and timings.is_sent:
            context.set_trailing_metadata((("server-timing", timings.header()),))
        return message

    async def _predict_stream(
        self, method: str, read: Callable[[bytes, CallContext], Request], context: CallContext
    ) -> None:
        """Run the inference of a call with one request message, and send a response message for each answer.

        An error is sent as the last message, or ends the call with an error status. method, read: as for
        `_predict`.
        """
        data = await context.read()
        if data is grpc.aio.EOF:  # type: ignore[attr-defined]
            await context.abort(grpc.StatusCode.INTERNAL, "the call has no message")
        began = time.monotonic()
        outgoing = OutgoingMessages(context)
        last: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        dag_run: DagRun | None = None
        try:
            request = read(data, context)
            request.endpoint = self.name
            request.stream = lambda answer, acknowledge: outgoing.add(self._encode(answer), acknowledge)
            if self._scheduler.traces.is_on:
                self._scheduler.begin_trace(request, "GRPC", began, context.get_traceparent())
            dag_run = self._scheduler.begin_request(request, last.set_result)
        except ServingError as exc:
            last.set_result(detach(exc))
        except Exception:
            log.exception("A fault of ours in %s", method)
            last.set_result(OUR_FAULT)
        try:
            await outgoing.write_until(last)
        finally:
            if dag_run is not None:
                dag_run.leave()
        answer = last.result()
        if dag_run is not None and (trace := dag_run.request.trace) is not None:
            trace.begin_response(describe_answer(answer))
            context.trace = trace
        if isinstance(answer, ServingError):
            self._access_log.refused(self.name, answer, name_caller(context.peer()))
            await self._write_last(context, await self._refuse(context, answer))
            return
        self._access_log.answered(self.name)
        if answer:
            await self._write_last(context, self._encode(answer))

    async def _write_last(self, context: CallContext, message: bytes) -> None:
        context.queue_message(len(message))
        await context.write(message)

    def _encode(self, answer: Answer) -> bytes:
        """Return the response message of one of several answers, or of an error."""
        raise NotImplementedError

    async def _end(self, context: CallContext, error: ServingError, code: str, message: str) -> Never:
        """End the call with an error status. code: name of a gRPC status code.

        An overload sets `grpc-retry-pushback-ms`, the delay before a retry.
        """
        if isinstance(error, Overloaded):
            context.set_trailing_metadata((("grpc-retry-pushback-ms", str(int(error.retry_after_s * 1000))),))
        await context.abort(getattr(grpc.StatusCode, code), message)
