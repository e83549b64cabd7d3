"""SIGHUP from a terminal that is gone stops the service; what it means else is in test_rolling_reload.py."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.support.free_ports import free_port
from tests.support.service_process import APPS, PATIENCE_S, ROOT, wait_until


def answers(port: int, path: str) -> bool:
    with contextlib.suppress(OSError):
        return bool(
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S).status == 200
        )
    return False


@pytest.mark.parametrize("survives", [False, True], ids=["foreground", "nohup"])
def test_a_service_leaves_with_its_terminal_but_under_nohup(tmp_path: Path, survives: bool) -> None:
    port, terminal, log = free_port(), pty.openpty(), tmp_path / "log"
    config = tmp_path / "config.yml"
    config.write_text(yaml.safe_dump({"http_port": port, "rpc_port": free_port()}))

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if survives else signal.SIG_DFL)  # not the suite's own

    with log.open("wb") as out:
        service = subprocess.Popen(
            [sys.executable, str(APPS / "echo.py")],
            stdin=terminal[1],
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=take_terminal,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SERVICE_CONFIG": str(config)},
        )
    try:
        os.close(terminal[1])
        wait_until(lambda: answers(port, "/health/ready"), "it is ready", on_timeout=log.read_text)
        os.close(terminal[0])
        if survives:
            wait_until(lambda: "Nothing to load anew" in log.read_text(), "it took the signal")
            assert answers(port, "/health/ready")
        else:
            assert service.wait(PATIENCE_S) == 0
            assert "The terminal is gone" in log.read_text()
    finally:
        service.kill()
        service.wait()
