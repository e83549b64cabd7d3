"""A process that may open few files: connections are bounded by that, so that workers can be replaced."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import pytest

from client.tls import Tls
from tests.support.service_process import APPS, ROOT, ServiceProcess, wait_until

TLS = ROOT / "tests" / "fixtures" / "tls"
PAIR = {"cert": str(TLS / "server.pem"), "key": str(TLS / "server.key")}
FILES = 160


@pytest.mark.parametrize(("config", "tls"), [({}, None), ({"tls": PAIR}, Tls(TLS / "ca.pem"))])
def test_connections_leave_descriptors_for_workers_and_for_others(
    config: dict[str, Any], tls: Tls | None
) -> None:
    with (
        ServiceProcess(APPS / "few_files.py", config, env={"FILES": str(FILES)}, tls=tls) as service,
        contextlib.ExitStack() as opened,
    ):
        assert f"this process may open {FILES} files" in service.log
        for port in (service.http_port, service.rpc_port):
            for _ in range(FILES):
                opened.enter_context(socket.create_connection(("127.0.0.1", port)))
        killed = service.kill_worker()
        wait_until(lambda: service.worker_pids() not in ([], [killed]), "the worker is replaced")
        wait_until(lambda: service.ask({"number": "21"})["err_no"] == 0, "those that say nothing give way")
        assert "can't be spawned" not in service.log
