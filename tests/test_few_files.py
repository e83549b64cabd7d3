"""A process that may open few files: connections are bounded by that, so that workers can be replaced."""

from __future__ import annotations

import contextlib
import socket

from service_process import APPS, ServiceProcess, wait_until

FILES = 160


def test_connections_leave_descriptors_for_workers_and_for_others() -> None:
    with (
        ServiceProcess(APPS / "few_files.py", {}, env={"FILES": str(FILES)}) as service,
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
