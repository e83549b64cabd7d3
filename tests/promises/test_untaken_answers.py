"""Clients over gRPC that ask and do not take their answers: what they can have held, and for how long."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from client.protos.kserve_v2_pb2 import ModelInferRequest
from client.protos.pipeline_service_pb2 import Request
from pipeline.front.grpc.slow_clients import ClientConnection
from tests.fuzz import http2
from tests.support.kernel_connections import is_connected
from tests.support.service_process import APPS, PATIENCE_S, RPC_METHOD, ServiceProcess, wait_until

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
MEGABYTE = 1_000_000
CLOSED, OPEN = 0, 2**31 - 1  # windows
SOON_S = PATIENCE_S / 2  # after a minute gRPC itself closes a connection that has not answered its ping


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "long_answers.py", {"limits": {"body_timeout_s": 1}}) as process:
        yield process


@pytest.fixture(scope="module")
def tight_service() -> Iterator[ServiceProcess]:
    limits = {"bodies_bytes": 6 * MEGABYTE, "response_bytes": 5 * MEGABYTE, "body_timeout_s": 600}
    with ServiceProcess(APPS / "long_answers.py", {"limits": limits}) as process:
        yield process


def answer(service: ServiceProcess, size: int) -> str:
    text: str = service.rpc({"number": str(size)}).value[0]
    return text


def asked(size: int) -> bytes:
    return Request(key=["number"], value=[str(size)]).SerializeToString()


def asked_v2(size: int) -> bytes:
    message = ModelInferRequest(model_name="test")
    tensor = message.inputs.add(name="number", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(str(size).encode())
    return message.SerializeToString()


class Client:
    """A connection that asks, and opens the window that it is told to for each of its answers.

    What arrives is read and discarded, unless it is not to read at all.
    """

    def __init__(self, service: ServiceProcess, window: int, *, reads: bool = True) -> None:
        self.socket = socket.socket()
        if not reads:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(("127.0.0.1", service.rpc_port))
        self.sent_away = threading.Event()
        self.received = 0
        settings = http2.frame(http2.SETTINGS, struct.pack(">HI", 4, window))
        self.socket.sendall(http2.PREFACE + settings)
        self.open_window(OPEN - 65535, stream=0)
        if reads:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.socket.recv(65536):
                self.received += len(data)
        self.sent_away.set()

    def ask(self, message: bytes, stream: int = 1) -> None:
        self.socket.sendall(http2.call(RPC_METHOD.encode(), message, stream=stream))

    def ask_in_stream(self, *messages: bytes) -> None:
        head = http2.frame(http2.HEADERS, http2.headers(STREAM.encode()), http2.END_HEADERS, 1)
        sent = b"".join(http2.frame(http2.DATA, http2.message(message), 0, 1) for message in messages)
        self.socket.sendall(head + sent)

    def open_window(self, size: int, stream: int) -> None:
        self.socket.sendall(http2.frame(http2.WINDOW_UPDATE, struct.pack(">I", size), 0, stream))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


@pytest.mark.parametrize("size", [1, MEGABYTE])
def test_a_client_that_opens_no_window_is_sent_away_and_others_are_answered(
    service: ServiceProcess, size: int
) -> None:
    with Client(service, CLOSED) as hostile:
        hostile.ask(asked(size))
        assert len(answer(service, MEGABYTE)) == MEGABYTE
        assert hostile.sent_away.wait(SOON_S)
    wait_until(lambda: "it has not read on for limits.body_timeout_s" in service.log, "the log says why")
    assert answer(service, 2) == "xx"


def test_a_client_that_reads_nothing_is_sent_away() -> None:
    with (
        ServiceProcess(APPS / "long_answers.py", {"limits": {"body_timeout_s": 1}}) as service,
        Client(service, OPEN, reads=False) as hostile,
    ):
        for number in range(9):
            hostile.ask(asked(MEGABYTE), stream=2 * number + 1)
        wait_until(lambda: "has not read on" in service.log, "it is told")  # not by gRPC, for want of pings
        wait_until(lambda: not is_connected(hostile.socket), "it is closed")


def test_a_stream_whose_messages_are_not_read_ends_as_unavailable(service: ServiceProcess) -> None:
    with service.channel() as channel:
        answers = channel.stream_stream(STREAM)(iter([asked_v2(MEGABYTE)] * 20), timeout=PATIENCE_S)
        next(answers)
        wait_until(lambda: not answers.is_active(), "the stream is cut off")
        with pytest.raises(grpc.RpcError) as told:
            list(answers)
        assert told.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_client_that_reads_slowly_gets_its_whole_answer() -> None:
    limits = {"body_timeout_s": 2}  # a busy machine may stop this client for a second
    with (
        ServiceProcess(APPS / "long_answers.py", {"limits": limits}) as service,
        Client(service, CLOSED) as slow,
    ):
        slow.ask(asked(MEGABYTE))
        give_up = time.monotonic() + PATIENCE_S
        while slow.received < MEGABYTE:
            assert not slow.sent_away.wait(0.1), "it reads three times as long as it may read nothing"
            assert time.monotonic() < give_up
            slow.open_window(16_000, stream=1)


def test_what_waits_to_be_read_is_bounded_in_sum(tight_service: ServiceProcess) -> None:
    service = tight_service
    with Client(service, CLOSED) as modest, Client(service, CLOSED) as greedy:
        modest.ask(asked(MEGABYTE))
        for number in range(9):
            greedy.ask(asked(MEGABYTE), stream=2 * number + 1)
        assert greedy.sent_away.wait(SOON_S)
        wait_until(lambda: "limits.bodies_bytes allows no more" in service.log, "the log says why")
        assert len(answer(service, 4 * MEGABYTE)) == 4 * MEGABYTE
        assert not modest.sent_away.is_set()


def test_a_connection_of_which_grpc_knows_no_client_is_not_found() -> None:
    nobody = ClientConnection("unknown")
    with contextlib.ExitStack() as stack:
        for end in socket.socketpair():
            stack.enter_context(end)
        ClientConnection.locate_sockets([nobody], [80])
    assert nobody.sent_bytes() is None and not nobody.reset()


def test_a_connection_is_reset_while_nothing_reads_what_its_client_sends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, listener.accept()[0] as accepted:
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    client.send(b"z" * 65536)
            host, client_port = client.getsockname()
            connection = ClientConnection(f"ipv4:{host}:{client_port}")
            ClientConnection.locate_sockets([connection], [port])
            assert connection.reset() and connection.closed
            with pytest.raises(ConnectionResetError):
                client.send(b"z")
            with pytest.raises(ConnectionResetError):
                accepted.recv(1)


def test_the_messages_of_a_stream_are_bounded_in_sum(tight_service: ServiceProcess) -> None:
    with Client(tight_service, CLOSED) as greedy:
        greedy.ask_in_stream(*[asked_v2(MEGABYTE)] * 20)
        assert greedy.sent_away.wait(SOON_S)
    assert answer(tight_service, 2) == "xx"
