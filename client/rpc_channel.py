"""A gRPC channel to the service, and the exceptions for gRPC statuses."""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

import grpc

from client.addresses import call_in_turn
from client.errors import (
    BadAnswer,
    ClientError,
    RequestRefused,
    RequestTimedOut,
    ServiceUnavailable,
    ServiceUnreachable,
    TooManyRequests,
)
from client.headers import HEADER, checked_headers, find_api_key
from client.protos.pipeline_service_pb2 import Request, Response
from client.tls import Tls

METHOD_PATH = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
STREAM_METHOD_PATH = f"{METHOD_PATH}_stream"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
MAX_MESSAGE_BYTES = 512 * 1024 * 1024
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.lb_policy_name", "round_robin"),
    # Channels of one process share connections by default; here a client is a connection.
    ("grpc.use_local_subchannel_pool", 1),
    # After a failed connection gRPC waits 1 s, longer than our own first retries.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.enable_http_proxy", 0),
]
TOO_LARGE_ERR_NO = 5000
# Phrases, in lower case, of UNAVAILABLE statuses that the local gRPC library makes.
TRANSPORT_PHRASES = (
    "failed to connect",
    "connections to all backends failing",
    "connection re",  # refused, reset
    "dns resolution failed",
    "socket closed",
    "stream removed",
    "goaway",
    "broken pipe",
    "endpoint closing",
    "transport closed",
    "empty address list",
    "keepalive",
)
# Paddle Serving's err_no for a service's error, because a gRPC status carries none.
ERR_NO_OF_STATUS = {
    grpc.StatusCode.UNAUTHENTICATED: 3004,
    grpc.StatusCode.UNIMPLEMENTED: 3000,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 3001,
    grpc.StatusCode.UNAVAILABLE: 3001,
    grpc.StatusCode.NOT_FOUND: 3002,
    grpc.StatusCode.INVALID_ARGUMENT: 5000,
    grpc.StatusCode.INTERNAL: 10000,
}


T = TypeVar("T")


class RpcChannel:
    """A client's gRPC channel to a service at one address, or at several addresses in turn.

    gRPC skips addresses without a connection. A call whose connection breaks is sent again, at most once for
    each further address.
    """

    def __init__(
        self,
        *addresses: str,
        tls: Tls | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Create a channel to `host:port` addresses, unencrypted without `tls`. Connects at the first call.

        headers: sent as metadata with each call. Raises ValueError for a bad address, an unusable file of
        `tls`, or an invalid header.
        """
        key = find_api_key(api_key)
        metadata = checked_headers(headers or {}) | ({} if key is None else {HEADER: key})
        self._metadata = tuple((name.lower(), value) for name, value in metadata.items()) or None
        target = build_target(addresses)
        self._addresses = ", ".join(addresses)
        self._tries = len(addresses)
        if tls is None:
            self._channel = grpc.insecure_channel(target, options=OPTIONS)
        else:
            # Without it gRPC would compare the certificates with the list of all addresses.
            options = [*OPTIONS, ("grpc.default_authority", addresses[0])]
            self._channel = grpc.secure_channel(target, tls.credentials(), options=options)
        self._inference = self._channel.unary_unary(
            METHOD_PATH,
            request_serializer=Request.SerializeToString,
            response_deserializer=Response.FromString,
        )
        self._inference_stream = self._channel.unary_stream(
            STREAM_METHOD_PATH,
            request_serializer=Request.SerializeToString,
            response_deserializer=Response.FromString,
        )

    def call(self, request: Request, timeout_s: float | None) -> Response:
        """Call PipelineService/inference, once at each address until one answers, and return the response.

        timeout_s: limit in seconds; None waits for ever. Raises a ClientError whose `__cause__` is the
        grpc.RpcError.
        """
        response: Response = self._send(
            lambda remaining_s: self._inference(request, timeout=remaining_s, metadata=self._metadata),
            timeout_s,
        )
        return response

    def stream(self, request: Request, timeout_s: float) -> Generator[Response, None, None]:
        """Call PipelineService/inference_stream, and yield the responses as they arrive.

        The call is sent once at each address until one answers. timeout_s: for all responses. Closing the
        generator cancels the call. Raises a ClientError whose `__cause__` is the grpc.RpcError.
        """

        def begin(remaining_s: float | None) -> tuple[Any, Response | None]:
            call: Any = self._inference_stream(request, timeout=remaining_s, metadata=self._metadata)
            return call, next(call, None)

        call, response = self._send(begin, timeout_s)
        try:
            while response is not None:
                yield response
                response = next(call, None)
        except grpc.RpcError as error:
            raise client_error(error, self._addresses) from error
        finally:
            call.cancel()

    def call_bytes(self, method: str, message: bytes, timeout_s: float | None) -> bytes:
        """Call the gRPC method of this path with a serialized message; return the serialized response.

        The call is sent once at each address until one answers. Raises a ClientError whose `__cause__` is the
        grpc.RpcError.
        """
        call = self._channel.unary_unary(method, request_serializer=None, response_deserializer=None)
        answer: bytes = self._send(
            lambda remaining_s: call(message, timeout=remaining_s, metadata=self._metadata), timeout_s
        )
        return answer

    def call_later(self, request: Request, timeout_s: float | None) -> grpc.CallFuture[Response]:
        """Call PipelineService/inference without waiting, and return gRPC's future of the response.

        The call is sent once. The future raises grpc.RpcError.
        """
        future: grpc.CallFuture[Response] = self._inference.future(
            request, timeout=timeout_s, metadata=self._metadata
        )
        return future

    def _send(self, call: Callable[[float | None], T], timeout_s: float | None) -> T:
        def send(remaining_s: float) -> T:
            try:
                return call(None if timeout_s is None else remaining_s)
            except grpc.RpcError as error:
                raise client_error(error, self._addresses) from error

        return call_in_turn([send] * self._tries, float("inf") if timeout_s is None else timeout_s)

    def close(self) -> None:
        """Close the channel. Calls in progress are cancelled."""
        self._channel.close()


def build_target(addresses: Sequence[str]) -> str:
    """Return the target string of a gRPC channel for one or more `host:port`.

    Several host names are resolved here, because gRPC needs IPv4 addresses for them. Raises ValueError for an
    invalid address, or if there is no address.
    """
    if not addresses:
        raise ValueError("no address to connect to; give ['127.0.0.1:8088']")
    for address in addresses:
        if not address.rpartition(":")[2].isdigit():
            raise ValueError(f"address {address!r} is not of the form host:port")
    if len(addresses) == 1:
        return addresses[0]
    pairs = [address.rpartition(":") for address in addresses]
    return "ipv4:" + ",".join(f"{socket.gethostbyname(host)}:{port}" for host, _, port in pairs)


def client_error(error: grpc.RpcError, addresses: str) -> ClientError:
    """Convert a gRPC error to the ClientError that the caller raises.

    A retry pushback in the trailing metadata becomes its `retry_after_s`. addresses: for the message.
    """
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return RequestTimedOut(f"no answer from {addresses} in time: {details}")
    pushback_ms = next((m.value for m in error.trailing_metadata() or () if m.key == PUSHBACK_KEY), None)
    failure: ClientError
    if code is grpc.StatusCode.CANCELLED or (
        code is grpc.StatusCode.UNAVAILABLE and _is_local_status(details)
    ):
        # This client never cancels: CANCELLED means that the call crossed the GOAWAY of a stopping server.
        failure = ServiceUnreachable(f"no answer from {addresses}: {details}; is the service started?")
    elif code is grpc.StatusCode.UNAVAILABLE:
        failure = ServiceUnavailable(ERR_NO_OF_STATUS[code], details)
    elif code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return RequestRefused(TOO_LARGE_ERR_NO, details)  # gRPC's limits have the same status as overload
    elif code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        failure = TooManyRequests(ERR_NO_OF_STATUS[code], details)
    elif code in ERR_NO_OF_STATUS:
        return RequestRefused(ERR_NO_OF_STATUS[code], details)
    else:
        return BadAnswer(f"{addresses} answered {code.name}: {details}")
    _heed_pushback(failure, pushback_ms)
    return failure


def _heed_pushback(error: ClientError, pushback_ms: str | bytes | None) -> None:
    """Apply gRPC's retry pushback (gRFC A6), the milliseconds to wait before a retry, to an error.

    A negative or unreadable value forbids retries.
    """
    if pushback_ms is None:
        return
    text = pushback_ms.decode("ascii", "replace") if isinstance(pushback_ms, bytes) else pushback_ms
    if text.isascii() and text.isdigit():
        error.retry_after_s = int(text) / 1000
    else:
        error.retryable = False


def _is_local_status(details: str) -> bool:
    """Return whether an UNAVAILABLE status comes from this client's gRPC library and not from the service.

    details: text of the status, the only sign of its origin.
    """
    return any(phrase in details.lower() for phrase in TRANSPORT_PHRASES)
