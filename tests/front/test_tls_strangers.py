"""Bytes that are no handshake, or half of one, at the TLS ports: each is sent away, the service goes on."""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.tls import Tls
from tests.support.service_process import APPS, PATIENCE_S, ROOT, ServiceProcess, wait_until

FILES = ROOT / "tests" / "fixtures" / "tls"
PAIR = {"cert": str(FILES / "server.pem"), "key": str(FILES / "server.key")}
PORTS = ("http_port", "rpc_port")
ALPN = {"http_port": "http/1.1", "rpc_port": "h2"}
MUTANTS = 60
CROWD = 100


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    config = {"tls": PAIR, "limits": {"header_timeout_s": 0.5, "idle_timeout_s": 2}}
    with ServiceProcess(APPS / "echo.py", config, tls=Tls(FILES / "ca.pem")) as process:
        yield process


@pytest.fixture(autouse=True)
def unharmed(service: ServiceProcess) -> Iterator[None]:
    """Afterwards both endpoints answer, no connection is left, and the log has no fault of ours."""
    before = open_files(service)
    yield
    assert service.predict({"number": "2"})["doubled"] == "4"
    assert service.rpc({"number": "3"}).value[1] == "6"
    wait_until(lambda: open_files(service) <= before + 2, "all connections are closed")
    assert "Traceback" not in service.log
    assert " ERROR " not in service.log


def open_files(service: ServiceProcess) -> int:
    return sum(1 for _ in Path(f"/proc/{service.process.pid}/fd").iterdir())


def context_for(port: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(FILES / "ca.pem"))
    context.set_alpn_protocols([ALPN[port]])
    return context


def hello(port: str) -> bytes:
    """A client's first flight, as OpenSSL sends it."""
    sent = ssl.MemoryBIO()
    handshake = context_for(port).wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    return sent.read()


def connected(service: ServiceProcess, port: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", getattr(service, port)), timeout=PATIENCE_S)


def until_closed(connection: socket.socket) -> None:
    """TimeoutError when the service neither answers nor closes."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(65536):
            pass


@pytest.mark.parametrize("port", PORTS)
def test_mutated_and_half_closed_handshakes_are_closed(service: ServiceProcess, port: str) -> None:
    chance = random.Random(1)
    good = hello(port)
    for _ in range(MUTANTS):
        data = bytearray(good[: chance.randrange(1, len(good) + 1)])
        for _ in range(chance.randrange(4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        data += chance.randbytes(chance.choice((0, 0, 5, 20_000)))
        with connected(service, port) as stranger, contextlib.suppress(ConnectionError):
            stranger.sendall(data)
            if chance.random() < 0.7:
                with contextlib.suppress(OSError):  # it is closed already
                    stranger.shutdown(socket.SHUT_WR)
            until_closed(stranger)


@pytest.mark.parametrize("port", PORTS)
def test_a_handshake_in_drops_is_ended_before_it_is_complete(service: ServiceProcess, port: str) -> None:
    drops, closed = iter(hello(port)), False
    with connected(service, port) as slow:
        while not closed:
            drop = next(drops, None)
            assert drop is not None, "all of the handshake was waited for"
            try:
                slow.sendall(bytes([drop]))
                readable, _, _ = select.select([slow], [], [], 0.05)
                closed = bool(readable) and not slow.recv(65536)
            except ConnectionError:
                closed = True


@pytest.mark.parametrize("port", PORTS)
def test_a_crowd_of_silent_strangers_is_sent_away_while_others_are_answered(
    service: ServiceProcess, port: str
) -> None:
    first = hello(port)
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(connected(service, port)) for _ in range(CROWD)]
        for number, stranger in enumerate(crowd):
            stranger.sendall(first[: number * len(first) // CROWD])
        assert service.predict({"number": "4"})["doubled"] == "8"
        assert service.rpc({"number": "5"}).value[1] == "10"
        for stranger in crowd:
            until_closed(stranger)


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("then", ["noise", "nothing", "half-closed", "a broken record"])
def test_who_shakes_hands_and_then_sends_no_request_is_sent_away(
    service: ServiceProcess, port: str, then: str
) -> None:
    plain = connected(service, port)
    with context_for(port).wrap_socket(plain, server_hostname="localhost") as stranger:
        with contextlib.suppress(OSError):
            if then == "noise":
                stranger.sendall(random.Random(2).randbytes(3000))
            elif then == "half-closed":
                socket.socket.shutdown(stranger, socket.SHUT_WR)
            elif then == "a broken record":
                os.write(stranger.fileno(), b"\x17\x03\x03\x40\x01" + bytes(0x4001))
        with contextlib.suppress(ssl.SSLError):
            until_closed(stranger)


def test_handshakes_that_never_end_count_as_connections() -> None:
    most, crowd_size = 20, 60
    limits = {"max_connections": most, "header_timeout_s": 10 * PATIENCE_S}
    with (
        ServiceProcess(
            APPS / "echo.py", {"tls": PAIR, "limits": limits}, tls=Tls(FILES / "ca.pem")
        ) as strict,
        contextlib.ExitStack() as stack,
    ):
        before = open_files(strict)
        crowd = [stack.enter_context(connected(strict, "http_port")) for _ in range(crowd_size)]
        for stranger in crowd[: crowd_size - most]:
            until_closed(stranger)
        assert open_files(strict) <= before + most
        assert strict.predict({"number": "4"})["doubled"] == "8"
