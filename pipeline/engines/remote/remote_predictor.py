"""A model that another service runs: what the predictors of remote Ops have in common. Imports no gRPC."""

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

from pipeline.config.remote_key import Metadata, RemoteKey
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
    """Where a remote Op's model is, and how patiently it is asked.

    timeout_s: of one try. tries: in all. first: the endpoint to begin the round with, so that the instances
    of an Op do not all begin with the same one. key_file: see `RemoteKey`.
    """

    op: str
    endpoints: tuple[str, ...]
    timeout_s: float
    tries: int
    first: int = 0
    key_file: str = ""


class RemotePredictor(ABC):
    """A predictor whose `run` is a call over the network. Several threads may run it at once."""

    merges: ClassVar[bool]  # whether feeds are arrays, whose rows those of several requests may be

    @property
    @abstractmethod
    def feeds(self) -> tuple[Variable, ...]: ...

    @property
    @abstractmethod
    def fetches(self) -> tuple[Variable, ...]: ...

    @abstractmethod
    def run(self, feeds: Mapping[str, Any], *, deadline: float = math.inf) -> dict[str, Any]:
        """Fetches by name, before `deadline` (time.monotonic).

        Raises DeadlineExceeded, RemoteUnreachable, Overloaded, InvalidInput, ModelFailed, or RemoteRefused.
        """

    @abstractmethod
    def close(self) -> None: ...


log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 512 * 1024 * 1024
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A service that is back shall be seen within a second; gRPC's own pauses reach two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # In spite of its name: how long an attempt to connect may take. A host that is gone does not refuse.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.enable_retries", 0),  # the tries are counted here
    ("grpc.enable_http_proxy", 0),
]
REST_S = 1.0  # so long an endpoint that failed is asked after the others
PAUSE_S = 0.1  # before the same endpoint is asked again for one request
# How an UNAVAILABLE begins whose request never left: asking the next endpoint then repeats nothing.
_NEVER_SENT = ("failed to connect", "dns resolution failed", "empty address list")
_TOO_LARGE = "larger than max"  # gRPC's size limits have the status of an overload


class _Endpoint:
    """One server and the connection to it, which gRPC makes and renews by itself.

    rests_until: the instant up to which the others are asked first; 0 while it answers.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(address, OPTIONS)
        self.rests_until = 0.0

    def ask(self, method: str, data: bytes, timeout_s: float, metadata: Metadata) -> bytes:
        call = self.channel.unary_unary(method, None, None)
        answer: bytes = call(data, timeout=timeout_s, metadata=metadata)
        return answer


class Endpoints:
    """The servers of one remote Op. Several threads may call at once."""

    def __init__(self, conf: RemoteConf, protocol: str) -> None:
        """protocol: what the servers should speak, for messages. Raises ConfigError for a bad key file."""
        self._conf = conf
        self._protocol = protocol
        self._key = RemoteKey(conf.key_file)
        self._endpoints = [_Endpoint(address) for address in conf.endpoints]
        self._turns = itertools.count(conf.first)

    def call(self, method: str, message: Message, deadline: float) -> tuple[bytes, str]:
        """The answer's bytes and the address of who gave it.

        A try that got no answer, or was refused for overload, is followed by one at the next endpoint. One
        that could not even connect costs no try while there is an endpoint that was not asked yet. Raises a
        ServingError that names the endpoint, and DeadlineExceeded at `deadline` (time.monotonic).
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
                raise failure or self._too_late(endpoint)
            shown = self._key.metadata  # another thread may renew it meanwhile
            try:
                answer = endpoint.ask(method, data, timeout_s, shown)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNAUTHENTICATED and self._key.reload(shown):
                    continue
                failure = self._failure(error, endpoint, deadline)
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
        """The next endpoint in turn first; those that failed of late last, in the order in which they did."""
        now = time.monotonic()
        awake = [endpoint for endpoint in self._endpoints if endpoint.rests_until <= now]
        resting = [endpoint for endpoint in self._endpoints if endpoint.rests_until > now]
        resting.sort(key=lambda endpoint: endpoint.rests_until)
        turn = next(self._turns) % max(1, len(awake))
        return awake[turn:] + awake[:turn] + resting

    def _failure(self, error: grpc.RpcError, endpoint: _Endpoint, deadline: float) -> ServingError:
        code, details = error.code(), error.details() or ""
        name, address = self._conf.op, endpoint.address
        said = f"{address} answered {code.name}: {details}"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return self._timed_out(endpoint) if time.monotonic() < deadline else self._too_late(endpoint)
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            # Nobody here cancels: a call that crosses the GOAWAY of a stopping server ends so.
            reason = details.rpartition("last error: ")[2].removeprefix("UNKNOWN: ")
            return RemoteUnreachable(
                f"[{name}] no answer from {address} ({reason}): check op.{name}.server_endpoints, and that a "
                f"{self._protocol} is ready there"
            )
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE not in details:
            return Overloaded(f"[{name}] {said}")
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            return InvalidInput(said)
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return ModelFailed(f"{said}; check op.{name}.server_api_key_file")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return ModelFailed(f"{said}; it is no {self._protocol}: check op.{name}.client_type")
        return ModelFailed(said)

    def _timed_out(self, endpoint: _Endpoint) -> DeadlineExceeded:
        name, tries = self._conf.op, self._conf.tries
        more = f" in each of {tries} tries" if tries > 1 else ""
        return DeadlineExceeded(
            f"[{name}] {endpoint.address} took more than op.{name}.timeout "
            f"({self._conf.timeout_s * 1000:g} ms){more}"
        )

    def _too_late(self, endpoint: _Endpoint) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"[{self._conf.op}] the request's deadline passed before {endpoint.address} answered"
        )


def _never_sent(error: grpc.RpcError) -> bool:
    details = (error.details() or "").lower()
    return error.code() is grpc.StatusCode.UNAVAILABLE and details.startswith(_NEVER_SENT)
