"""Common parts of the predictors of remote Ops, whose models run in other services."""

from __future__ import annotations

import itertools
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import grpc
from google.protobuf.message import Message

from pipeline.config.op_section import Metadata, RemoteKey
from pipeline.errors import (
    DeadlineExceeded,
    InvalidInput,
    ModelFailed,
    Overloaded,
    RemoteUnreachable,
    ServingError,
)
from pipeline.models.serving_model import Variable


@dataclass(frozen=True)
class RemoteConf:
    """Endpoints, timeout and tries of a remote Op."""

    op: str
    endpoints: tuple[str, ...]
    timeout_s: float  # of one try
    tries: int  # in all
    first: int = 0  # index of the first endpoint, so that instances begin with different endpoints
    key_file: str = ""  # see `RemoteKey`


class RemotePredictor(ABC):
    """A predictor whose `run` is a call over the network. Several threads may run it at once."""

    merges: ClassVar[bool]  # whether feeds are arrays that may hold rows of several requests

    @property
    @abstractmethod
    def feeds(self) -> tuple[Variable, ...]: ...

    @property
    @abstractmethod
    def fetches(self) -> tuple[Variable, ...]: ...

    @abstractmethod
    def run(self, feeds: Mapping[str, Any], *, deadline: float = math.inf) -> dict[str, Any]:
        """Return fetches by name, before `deadline` (time.monotonic).

        Raises DeadlineExceeded, RemoteUnreachable, Overloaded, InvalidInput, ModelFailed, or RemoteRefused.
        """

    @abstractmethod
    def close(self) -> None: ...


log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 512 * 1024 * 1024
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Reconnect within a second to a service that is back; gRPC's default backoff reaches two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Despite the name, the timeout of a connection attempt. A host that is gone does not refuse.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.enable_retries", 0),  # Endpoints.call retries
    ("grpc.enable_http_proxy", 0),
]
REST_S = 1.0  # during which a failed endpoint is tried after the others
PAUSE_S = 0.1  # before a request tries the same endpoint again
# Prefixes of UNAVAILABLE for requests that were never sent: trying the next endpoint repeats nothing.
_NEVER_SENT = ("failed to connect", "dns resolution failed", "empty address list")
_TOO_LARGE = "larger than max"  # gRPC's size limits use the status of an overload


class _Endpoint:
    """A server and the gRPC channel to it, which reconnects by itself."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(address, OPTIONS)
        self.rests_until = 0.0  # other endpoints are tried first until then; 0: the endpoint works

    def call(self, method: str, data: bytes, timeout_s: float, metadata: Metadata) -> bytes:
        call = self.channel.unary_unary(method, None, None)
        answer: bytes = call(data, timeout=timeout_s, metadata=metadata)
        return answer


class Endpoints:
    """The servers of one remote Op. Several threads may call at once."""

    def __init__(self, conf: RemoteConf, protocol: str) -> None:
        """`protocol` names the expected protocol in messages. Raises ConfigError for an invalid key file."""
        self._conf = conf
        self._protocol = protocol
        self._key = RemoteKey(conf.key_file)
        self._endpoints = [_Endpoint(address) for address in conf.endpoints]
        self._turns = itertools.count(conf.first)

    def call(self, method: str, message: Message, deadline: float) -> tuple[bytes, str]:
        """Call an endpoint, and return the response's bytes and the endpoint's address.

        A try without a response, or refused for overload, is repeated at the next endpoint. A failed
        connection costs no try while an endpoint is untried. Raises a ServingError that names the endpoint,
        and DeadlineExceeded at `deadline` (time.monotonic).
        """
        data = message.SerializeToString()
        order = self._order()
        tries_left = self._conf.tries
        failure: ServingError | None = None
        for number in itertools.count():
            if number >= len(order):
                time.sleep(min(PAUSE_S, max(0.0, deadline - time.monotonic())))
            endpoint = order[number % len(order)]
            timeout_s = min(self._conf.timeout_s, deadline - time.monotonic())
            if timeout_s <= 0:
                raise failure or self._build_deadline_error(endpoint)
            metadata = self._key.metadata  # another thread may reload the key meanwhile
            try:
                answer = endpoint.call(method, data, timeout_s, metadata)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNAUTHENTICATED and self._key.reload(metadata):
                    continue
                failure = self._convert_error(error, endpoint, deadline)
                if not isinstance(failure, DeadlineExceeded | RemoteUnreachable | Overloaded):
                    raise failure from error
                if not endpoint.rests_until:
                    log.warning("%s", failure.message)
                endpoint.rests_until = time.monotonic() + REST_S
                tries_left -= not _never_sent(error) or number + 1 >= len(order)
                if tries_left <= 0:
                    raise failure from error
            else:
                if endpoint.rests_until:
                    log.info("[%s] %s answers again", self._conf.op, endpoint.address)
                    endpoint.rests_until = 0.0
                return answer, endpoint.address
        raise AssertionError("unreachable")

    def close(self) -> None:
        for endpoint in self._endpoints:
            endpoint.channel.close()

    def _order(self) -> list[_Endpoint]:
        """Return the endpoints: the next in turn first, recently failed ones last, by time of failure."""
        now = time.monotonic()
        awake = [endpoint for endpoint in self._endpoints if endpoint.rests_until <= now]
        resting = [endpoint for endpoint in self._endpoints if endpoint.rests_until > now]
        resting.sort(key=lambda endpoint: endpoint.rests_until)
        turn = next(self._turns) % max(1, len(awake))
        return awake[turn:] + awake[:turn] + resting

    def _convert_error(self, error: grpc.RpcError, endpoint: _Endpoint, deadline: float) -> ServingError:
        code, details = error.code(), error.details() or ""
        name, address = self._conf.op, endpoint.address
        message = f"{address} answered {code.name}: {details}"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            if time.monotonic() < deadline:
                return self._build_timeout_error(endpoint)
            return self._build_deadline_error(endpoint)
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            # CANCELLED: the call crossed the GOAWAY of a stopping server. We never cancel calls.
            reason = details.rpartition("last error: ")[2].removeprefix("UNKNOWN: ")
            return RemoteUnreachable(
                f"[{name}] no answer from {address} ({reason}): check op.{name}.server_endpoints, and that a "
                f"{self._protocol} is ready there"
            )
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE not in details:
            return Overloaded(f"[{name}] {message}")
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            return InvalidInput(message)
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return ModelFailed(f"{message}; check op.{name}.server_api_key_file")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return ModelFailed(f"{message}; it is no {self._protocol}: check op.{name}.client_type")
        return ModelFailed(message)

    def _build_timeout_error(self, endpoint: _Endpoint) -> DeadlineExceeded:
        name, tries = self._conf.op, self._conf.tries
        more = f" in each of {tries} tries" if tries > 1 else ""
        return DeadlineExceeded(
            f"[{name}] {endpoint.address} took more than op.{name}.timeout "
            f"({self._conf.timeout_s * 1000:g} ms){more}"
        )

    def _build_deadline_error(self, endpoint: _Endpoint) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"[{self._conf.op}] the request's deadline passed before {endpoint.address} answered"
        )


def _never_sent(error: grpc.RpcError) -> bool:
    details = (error.details() or "").lower()
    return error.code() is grpc.StatusCode.UNAVAILABLE and details.startswith(_NEVER_SENT)
