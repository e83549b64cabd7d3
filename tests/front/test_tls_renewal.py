"""Renewed certificates: SIGHUP has both ports show them, and no connection or call pays for it."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from client.protos.pipeline_service_pb2 import Request, Response
from client.tls import Tls
from tests.support.service_process import APPS, ROOT, RPC_METHOD, ServiceProcess, key_value, read_answer

FILES = ROOT / "tests" / "fixtures" / "tls"
READ = "The files of tls are read again"
KEPT = "The certificates stay as they were"


class Renewed(NamedTuple):
    """A service whose files of `tls` are in a folder of its own, and the authority of the next ones."""

    service: ServiceProcess
    folder: Path
    next_ca: Tls


@pytest.fixture
def renewed(tmp_path: Path) -> Iterator[Renewed]:
    for name in ("server.pem", "server.key"):
        shutil.copy(FILES / name, tmp_path)
    pair = {"cert": str(tmp_path / "server.pem"), "key": str(tmp_path / "server.key")}
    with ServiceProcess(APPS / "echo.py", {"tls": pair}, tls=Tls(FILES / "ca.pem")) as service:
        yield Renewed(service, tmp_path, Tls(FILES / "next.pem"))


def renew(folder: Path) -> None:
    """A certificate that is its own authority, in place of the one there is."""
    for suffix in (".pem", ".key"):
        shutil.copy(FILES / f"next{suffix}", folder / f"server{suffix}")


def hang_up(service: ServiceProcess, told: str) -> None:
    before = service.log.count(told)
    service.process.send_signal(signal.SIGHUP)
    service.wait_for_log(told, before + 1)


def double(channel: grpc.Channel, number: str) -> str:
    message = Request(name="test", key=["number"], value=[number]).SerializeToString()
    return Response.FromString(channel.unary_unary(RPC_METHOD)(message, timeout=30)).value[1]


def test_both_ports_show_them_and_open_connections_go_on(renewed: Renewed) -> None:
    service, trusting_the_old = renewed.service, renewed.service.tls
    with contextlib.closing(service.connection()) as kept, service.channel() as channel:
        kept.request("POST", "/test/prediction", key_value({"number": "1"}))
        assert read_answer(kept).json["value"][1] == "2"
        assert double(channel, "1") == "2"
        renew(renewed.folder)
        hang_up(service, READ)
        kept.request("POST", "/test/prediction", key_value({"number": "3"}))
        assert read_answer(kept).json["value"][1] == "6"
        assert double(channel, "3") == "6"
    service.tls = renewed.next_ca
    assert service.predict({"number": "4"})["doubled"] == "8"
    assert service.rpc({"number": "5"}).value[1] == "10"
    service.tls = trusting_the_old
    with pytest.raises(OSError, match="certificate verify failed"):
        service.predict({"number": "4"})
    with pytest.raises(grpc.RpcError):
        service.rpc({"number": "4"})


def test_files_that_do_not_belong_together_change_nothing(renewed: Renewed) -> None:
    service = renewed.service
    shutil.copy(FILES / "client.key", renewed.folder / "server.key")
    hang_up(service, KEPT)
    assert "server.key is not the private key of the first certificate" in service.log
    assert service.predict({"number": "4"})["doubled"] == "8"
    assert service.rpc({"number": "5"}).value[1] == "10"
    renew(renewed.folder)
    hang_up(service, READ)
    service.tls = renewed.next_ca
    assert service.predict({"number": "4"})["doubled"] == "8"


def test_a_stop_after_a_renewal_loses_nothing_and_leaves_no_port_open(renewed: Renewed) -> None:
    service = renewed.service
    renew(renewed.folder)
    for _ in range(3):
        hang_up(service, READ)
    service.tls = renewed.next_ca
    assert service.predict({"number": "4"})["doubled"] == "8"
    service.terminate()
    assert service.exit_code() == 0
    with pytest.raises(ConnectionRefusedError):
        service.connection().connect()


def test_who_may_sign_for_clients_is_read_again_too(tmp_path: Path) -> None:
    authority = tmp_path / "client_ca.pem"
    shutil.copy(FILES / "ca.pem", authority)
    pair = {"cert": str(FILES / "server.pem"), "key": str(FILES / "server.key")}
    client = Tls(FILES / "ca.pem", FILES / "client.pem", FILES / "client.key")
    config = {"tls": {**pair, "client_ca": str(authority)}}
    with ServiceProcess(APPS / "echo.py", config, tls=client) as service:
        shutil.copy(FILES / "other_ca.pem", authority)
        hang_up(service, READ)
        with pytest.raises(OSError):
            service.predict({"number": "4"})
        with pytest.raises(grpc.RpcError):
            service.rpc({"number": "4"})
        shutil.copy(FILES / "ca.pem", authority)
        hang_up(service, READ)
        assert service.predict({"number": "4"})["doubled"] == "8"
        assert service.rpc({"number": "5"}).value[1] == "10"
