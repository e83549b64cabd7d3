"""gRPC messages that never end: what of them is held, in sum."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
from collections.abc import Iterator

import grpc
import pytest

from client.protos.kserve_v2_pb2 import ModelInferRequest
from tests.fuzz import http2
from tests.support.front_memory import front_bytes
from tests.support.service_process import APPS, PATIENCE_S, RPC_METHOD, ServiceProcess, wait_until

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
DECLARED = 60_000_000  # bytes of each message, which do not all come
BOUND = 100_000_000


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    """The bound is near what a front takes by itself: less is not looked at."""
    with ServiceProcess(
        APPS / "echo.py", {"limits": {"bodies_bytes": BOUND, "body_timeout_s": 600}}
    ) as process:
        yield process


class Sender:
    """A connection that sends its messages as fast as the windows allow."""

    def __init__(self, service: ServiceProcess, method: str, calls: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", service.rpc_port), timeout=PATIENCE_S)
        self._streams = [2 * i + 1 for i in range(calls)]
        self._windows = dict.fromkeys([0, *self._streams], 65535)
        self._window = 65535  # of each stream at its beginning, as the service says
        self._unparsed = b""
        self.socket.sendall(http2.opening())
        for stream in self._streams:
            head = http2.frame(http2.HEADERS, http2.headers(method.encode()), http2.END_HEADERS, stream)
            self.socket.sendall(head)
            self._send(stream, struct.pack(">BI", 0, DECLARED))

    def send(self, size: int) -> bool:
        """So much of each message. Returns whether the connection is still open then."""
        with contextlib.suppress(ConnectionError):
            for stream in self._streams:
                left = size
                while left:
                    some = min(16384, left, self._windows[0], self._windows[stream])
                    if not some and not self._read():
                        return False
                    self._send(stream, b"z" * some)
                    left -= some
            return True
        return False

    def _send(self, stream: int, data: bytes) -> None:
        if data:
            self.socket.sendall(http2.frame(http2.DATA, data, 0, stream))
            self._windows[0] -= len(data)
            self._windows[stream] -= len(data)

    def _read(self) -> bool:
        """What the service says of windows; false when it has closed the connection."""
        try:
            received = self.socket.recv(65536)
        except ConnectionError:
            return False
        self._unparsed += received
        while len(self._unparsed) >= 9:
            length, kind, flags = int.from_bytes(self._unparsed[:3], "big"), *self._unparsed[3:5]
            if len(self._unparsed) < 9 + length:
                break
            stream = int.from_bytes(self._unparsed[5:9], "big")
            payload, self._unparsed = self._unparsed[9 : 9 + length], self._unparsed[9 + length :]
            self._take(kind, flags, stream, payload)
        return bool(received)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == http2.WINDOW_UPDATE:
            self._windows[stream] += int.from_bytes(payload, "big")
        elif kind == http2.PING and not flags:
            self.socket.sendall(http2.frame(http2.PING, payload, 1))
        elif kind == http2.SETTINGS and not flags:
            for number, value in struct.iter_unpack(">HI", payload):
                if number == 4:
                    for each in self._streams:
                        self._windows[each] += value - self._window
                    self._window = value
            self.socket.sendall(http2.frame(http2.SETTINGS, flags=1))

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def inferred(text: str) -> bytes:
    message = ModelInferRequest(model_name="test")
    tensor = message.inputs.add(name="text", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(text.encode())
    return message.SerializeToString()


@pytest.mark.parametrize("method", [STREAM, RPC_METHOD], ids=["streams", "calls"])
def test_who_sends_most_of_messages_that_never_end_is_sent_away(service: ServiceProcess, method: str) -> None:
    with Sender(service, method, 2) as modest, Sender(service, method, 12) as greedy:
        assert modest.send(5_000_000)
        sent = 0
        while greedy.send(250_000):
            assert service.rpc({"number": "2"}).value[1] == "4"
            sent += 250_000
            assert sent < DECLARED - 250_000, "it may send all"
        wait_until(lambda: "Unfinished messages: " in service.log, "the log says why")
        assert modest.send(5_000_000)


def test_a_stream_may_send_more_in_whole_messages(service: ServiceProcess) -> None:
    with service.channel() as channel, Sender(service, STREAM, 4) as unfinished:
        assert unfinished.send(20_000_000)
        messages = iter([inferred("x" * 2_000_000)] * 100)
        answers = channel.stream_stream(STREAM)(messages, timeout=PATIENCE_S)
        assert sum(1 for _ in answers) == 100


class Resting:
    """A stream over the channel that has had an answer, and rests until the next `ask`."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        messages = iter(self._messages.get, None)
        self._answers = channel.stream_stream(STREAM)(messages, timeout=PATIENCE_S)
        self.ask()

    def ask(self) -> None:
        self._messages.put(inferred("x"))
        assert b"x" in next(self._answers)

    def __enter__(self) -> Resting:
        return self

    def __exit__(self, *_: object) -> None:
        self._messages.put(None)
        self._answers.cancel()


def test_a_stream_at_rest_counts_for_nothing_that_other_connections_send(service: ServiceProcess) -> None:
    with service.channel() as channel, Resting(channel) as honest, Sender(service, STREAM, 12) as greedy:
        sent = 0
        while greedy.send(250_000):
            sent += 250_000
            assert sent < DECLARED - 250_000, "it may send all"
        honest.ask()


def test_a_stream_at_rest_counts_for_one_message_of_all_that_its_connection_sends(
    service: ServiceProcess,
) -> None:
    with (
        service.channel() as channel,
        Resting(channel) as honest,
        Sender(service, STREAM, 2) as unfinished,
    ):
        assert unfinished.send(15_000_000)
        wait_until(lambda: front_bytes(service) > BOUND, "what arrives is looked at")
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for _ in range(100):
            infer(inferred("x" * 2_000_000), timeout=PATIENCE_S)
        honest.ask()
        assert front_bytes(service) > BOUND
