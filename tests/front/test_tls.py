"""`tls` in config.yml: both ports encrypted, clients that trust and are trusted, and those that disturb."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.errors import BadAnswer, ServiceUnreachable
from client.http_client import HttpClient
from client.pipeline_client import PipelineClient
from client.rpc_client import RpcClient
from client.tls import Tls
from tests.support.service_process import APPS, PATIENCE_S, ROOT, ServiceProcess, key_value, read_answer
from tests.support.stop_under_load import assert_no_request_is_lost

FILES = ROOT / "tests" / "fixtures" / "tls"
CA, OTHER_CA = FILES / "ca.pem", FILES / "other_ca.pem"
PAIR = {"cert": str(FILES / "server.pem"), "key": str(FILES / "server.key")}
TRUSTING = Tls(CA)
KNOWN = Tls(CA, FILES / "client.pem", FILES / "client.key")
LIMITS = {"body_bytes": 100_000, "header_timeout_s": 0.5}
CLIENTS = 4


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "echo.py", {"tls": PAIR, "limits": LIMITS}, tls=TRUSTING) as process:
        yield process


@pytest.fixture(scope="module")
def private() -> Iterator[ServiceProcess]:
    """A service for clients that show a certificate."""
    config = {"tls": {**PAIR, "client_ca": str(CA)}}
    with ServiceProcess(APPS / "echo.py", config, tls=KNOWN) as process:
        yield process


def over_http(service: ServiceProcess, tls: Tls | None, url: str = "") -> HttpClient:
    return HttpClient(url or service.url, "test", retries=0, tls=tls)


def over_rpc(service: ServiceProcess, tls: Tls | None) -> RpcClient:
    return RpcClient(f"localhost:{service.rpc_port}", "test", retries=0, tls=tls)


def script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "client" / name), *arguments, "--service", "test", "one text"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def raw(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


class TestBothPorts:
    @pytest.mark.parametrize("connect", [over_http, over_rpc])
    def test_a_client_that_trusts_the_authority_is_answered(
        self, service: ServiceProcess, connect: type[HttpClient]
    ) -> None:
        with connect(service, TRUSTING) as client:
            assert client.predict({"number": "21"}).outputs["doubled"] == "42"
            assert client.predict({"number": "4"}).outputs["doubled"] == "8"

    def test_paddle_servings_client_takes_the_authority_too(self, service: ServiceProcess) -> None:
        with PipelineClient(tls=TRUSTING) as client:
            client.connect([f"localhost:{service.rpc_port}"])
            assert client.predict({"number": "3"}).value[1] == "6"

    def test_a_client_that_trusts_another_authority_sends_nothing(self, service: ServiceProcess) -> None:
        with over_http(service, Tls(OTHER_CA)) as client, pytest.raises(BadAnswer, match=r"Tls\(ca_file"):
            client.predict("text")
        with over_rpc(service, Tls(OTHER_CA)) as client, pytest.raises(ServiceUnreachable):
            client.predict("text")

    def test_the_scripts_take_the_authoritys_file(self, service: ServiceProcess) -> None:
        options = ("--json", "--ca", str(CA))
        by_http = script("http_client.py", "--url", service.url, *options)
        by_rpc = script("rpc_client.py", "--address", f"localhost:{service.rpc_port}", *options)
        assert [done.returncode for done in (by_http, by_rpc)] == [0, 0], (by_http, by_rpc)
        assert '"err_no": 0' in by_http.stdout
        missing = script("http_client.py", "--url", service.url, "--ca", "no/such.pem")
        assert (missing.returncode, "Traceback" in missing.stderr) == (1, False)
        assert "ca_file no/such.pem can't be used" in missing.stderr

    def test_a_refused_body_is_told_and_the_connection_closed(self, service: ServiceProcess) -> None:
        connection = service.connection()
        with contextlib.closing(connection):
            connection.request("POST", "/test/prediction", b"x" * 100_001)
            answer = read_answer(connection)
        assert (answer.status, answer.headers["connection"]) == (413, "close")


class TestDisturbers:
    @pytest.mark.parametrize("port", ["http_port", "rpc_port"])
    @pytest.mark.parametrize(
        "sent",
        [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 4000, b"PRI * HTTP/2.0"],
        ids=["plain HTTP", "a broken hello", "plain gRPC"],
    )  # fmt: skip
    def test_what_is_no_tls_is_closed_and_disturbs_nobody(
        self, service: ServiceProcess, port: str, sent: bytes
    ) -> None:
        kept = service.connection()
        with contextlib.closing(kept), raw(getattr(service, port)) as stranger:
            kept.request("POST", "/test/prediction", key_value({"number": "1"}))
            assert read_answer(kept).json["value"][1] == "2"
            stranger.sendall(sent)
            with contextlib.suppress(ConnectionResetError):
                assert b"HTTP" not in stranger.recv(1000)
            kept.request("POST", "/test/prediction", key_value({"number": "2"}))
            assert read_answer(kept).json["value"][1] == "4"
        assert service.rpc({"number": "2"}).value[1] == "4"
        assert "Traceback" not in service.log and "ERROR" not in service.log

    @pytest.mark.parametrize("port", ["http_port", "rpc_port"])
    def test_a_handshake_that_does_not_go_on_is_ended_after_header_timeout_s(
        self, service: ServiceProcess, port: str
    ) -> None:
        with raw(getattr(service, port)) as silent:
            assert silent.recv(1) == b""


class TestClientCertificates:
    @pytest.mark.parametrize("connect", [over_http, over_rpc])
    def test_who_shows_one_of_the_authority_is_answered(
        self, private: ServiceProcess, connect: type[HttpClient]
    ) -> None:
        with connect(private, KNOWN) as client:
            assert client.predict({"number": "21"}).outputs["doubled"] == "42"

    @pytest.mark.parametrize("connect", [over_http, over_rpc])
    def test_who_shows_none_is_turned_away(self, private: ServiceProcess, connect: type[HttpClient]) -> None:
        with connect(private, TRUSTING) as client, pytest.raises(ServiceUnreachable):
            client.predict("text")


def test_a_stop_loses_no_request_over_tls() -> None:
    with ServiceProcess(APPS / "echo.py", {"tls": PAIR}, tls=TRUSTING) as service:
        assert_no_request_is_lost(service, CLIENTS, before=10)


class TestMistakes:
    LOCKED = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n"
    DAMAGED = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"cert": "no/such.pem"}, "no/such.pem can't be read (No such file"),
            ({"key": PAIR["cert"]}, "tls.key: {files}/server.pem holds no private key in PEM form"),
            ({"cert": PAIR["key"]}, "tls.cert: {files}/server.key holds no certificate in PEM form"),
            ({"key": str(FILES / "client.key")}, "tls.key: {files}/client.key is not the private key of"),
            ({"key": "locked.key"}, "tls.key: {here}/locked.key is locked with a passphrase"),
            ({"cert": "damaged.pem"}, "tls: {here}/damaged.pem or {files}/server.key is damaged"),
            ({"client_ca": "damaged.pem"}, "or {here}/damaged.pem is damaged"),
            ({"client_ca": "."}, "tls.client_ca: {here} can't be read (Is a directory)"),
            ({"key": None}, "tls.key: missing"),
            ({"certificate": "a.pem"}, "tls.certificate: unknown key; known here: cert, key"),
        ],
        ids=lambda value: value if isinstance(value, str) else None,
    )  # fmt: skip
    def test_a_file_that_cannot_be_used_is_told_in_one_sentence(
        self, tmp_path: Path, change: dict[str, str | None], told: str
    ) -> None:
        (tmp_path / "locked.key").write_bytes(self.LOCKED)
        (tmp_path / "damaged.pem").write_bytes(self.DAMAGED)
        config = {"tls": {**PAIR, **change}}
        with ServiceProcess(APPS / "echo.py", config, folder=tmp_path, wait=False) as service:
            assert service.exit_code() == 2
            assert told.format(here=tmp_path, files=FILES) in service.log
            assert service.log.count("\n") == 1, service.log

    def test_files_are_found_where_the_service_is_started(self, tmp_path: Path) -> None:
        for name in ("server.pem", "server.key"):
            shutil.copy(FILES / name, tmp_path)
        config = {"tls": {"cert": "server.pem", "key": "server.key"}}
        with ServiceProcess(APPS / "echo.py", config, folder=tmp_path, tls=TRUSTING) as service:
            assert service.predict({"number": "2"})["doubled"] == "4"

    def test_tls_for_a_url_without_it_is_refused(self, service: ServiceProcess) -> None:
        with pytest.raises(ValueError, match="https://host:port"):
            over_http(service, TRUSTING, "http://127.0.0.1:1")

    def test_a_client_without_tls_is_not_answered(self, service: ServiceProcess) -> None:
        with over_rpc(service, None) as client, pytest.raises(ServiceUnreachable):
            client.predict("text")
        plain = http.client.HTTPConnection("127.0.0.1", service.http_port, timeout=PATIENCE_S)
        with contextlib.closing(plain), pytest.raises((ConnectionError, http.client.HTTPException)):
            plain.request("GET", "/health/live")
            plain.getresponse()
