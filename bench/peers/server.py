"""A peer's server: its processes, and requests to it."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.load import CannotMeasure
from bench.peers.dialects import Answer, Dialect
from bench.processes import children, cpu_s
from pipeline.process.environment import MODEL_PROCESS

_START_S = 120.0
_STOP_S = 10.0
_AT_ONCE = 32


class Door:
    """Where a server is asked, and how."""

    def __init__(self, port: int, path: str, dialect: Dialect) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.path = path
        self.dialect = dialect
        self._port = port

    def ask(self, text: str) -> Answer:
        """Raises OSError or HTTPException without an answer, ValueError or KeyError for what is none."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        with contextlib.closing(connection):
            headers = {"content-type": "application/json"}
            connection.request("POST", self.path, self.dialect.body(text), headers)
            answer = connection.getresponse()
            content = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise ValueError(f"{answer.status}: {content[:400]!r}")
        return self.dialect.answer(content)

    def ask_all(self, texts: Sequence[str]) -> list[Answer]:
        """Many at once, so that they share batches."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(self.ask, texts))


class Processes:
    """A server's first process and all that came of it."""

    def __init__(self, first: int) -> None:
        self._first = first

    def all(self) -> list[int]:
        found = [self._first]
        for pid in found:
            with contextlib.suppress(OSError):
                found += children(pid)
        return found

    def cpu_s(self) -> float:
        """So far."""
        return cpu_s(self.all())


@contextlib.contextmanager
def running(
    command: Sequence[str], venv: Path, door: Door, env: Mapping[str, str], text: str
) -> Iterator[Processes]:
    """Start it as in an activated environment; wait until it answers `text`. Raises CannotMeasure."""
    with tempfile.TemporaryDirectory(prefix="peer-") as folder, tempfile.TemporaryFile("w+b") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=_activated(venv) | env, stdout=log, stderr=log, start_new_session=True
        )  # a group of its own: Paddle Serving ends its own when it fails
        processes = Processes(process.pid)
        try:
            _wait_until_answered(process, lambda: door.ask(text), log.fileno())
            yield processes
        finally:
            _stop(process, processes)


def _activated(venv: Path) -> dict[str, str]:
    """What a shell has there, and what our workers have set."""
    libraries = os.pathsep.join(
        filter(None, [sysconfig.get_config_var("LIBDIR"), os.getenv("LD_LIBRARY_PATH")])
    )
    return {
        **MODEL_PROCESS, **os.environ, "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(venv),
        "LD_LIBRARY_PATH": libraries,  # Triton's Python backend loads libpython
    }  # fmt: skip


def _wait_until_answered(process: subprocess.Popen[bytes], ask: Callable[[], Answer], log: int) -> None:
    until = time.monotonic() + _START_S
    why = ""
    while time.monotonic() < until and process.poll() is None:
        try:
            ask()
        except (OSError, http.client.HTTPException, ValueError, KeyError) as exc:
            why = str(exc)
            time.sleep(0.2)
        else:
            return
    size = os.fstat(log).st_size
    written = os.pread(log, 3000, max(0, size - 3000)).decode(errors="replace")
    raise CannotMeasure(f"it did not answer ({why}):\n{written}")


def _stop(process: subprocess.Popen[bytes], processes: Processes) -> None:
    """As its documentation says, and whatever that leaves."""
    known = processes.all()
    process.send_signal(signal.SIGTERM)
    until = time.monotonic() + _STOP_S
    while time.monotonic() < until and any(map(_runs, known)):
        process.poll()
        time.sleep(0.1)
    for pid in known:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
