"""A measured server: its processes, the time of its first answer, and requests to it."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from bench.load import CannotMeasure
from bench.peers.dialects import Answer, Dialect
from bench.processes import children, cpu_s, resident_mb

_START_S = 180.0
_POLL_S = 0.05
_STOP_S = 10.0
_AT_ONCE = 16


class Endpoint:
    """Address and request format of a server."""

    def __init__(self, port: int, path: str, dialect: Dialect) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.path = path
        self.dialect = dialect
        self._port = port

    def ask(self, text: str) -> Answer:
        """Send one request and return its answer.

        Raises OSError or HTTPException without an answer, and ValueError or KeyError for an invalid answer.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        with contextlib.closing(connection):
            headers = {"content-type": "application/json"}
            connection.request("POST", self.path, self.dialect.body(text), headers)
            answer = connection.getresponse()
            content = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise ValueError(f"{answer.status}: {content[:400]!r}")
        return self.dialect.answer(content)

    def ask_all(self, texts: Sequence[str]) -> list[Answer]:
        """Send many requests at once, so that they share batches. Raises CannotMeasure if one fails."""
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                return list(pool.map(self.ask, texts))
        except (OSError, http.client.HTTPException, ValueError, KeyError) as exc:
            raise CannotMeasure(f"a text was not answered at {self.url}{self.path}: {exc}") from exc


class Processes:
    """A server's first processes and all their descendants."""

    def __init__(self, *first: int) -> None:
        self._first = first

    def all(self) -> list[int]:
        pids = [*self._first]
        for pid in pids:
            with contextlib.suppress(OSError):
                pids += children(pid)
        return pids

    def cpu_s(self) -> float:
        """Return the CPU seconds of all processes so far."""
        return cpu_s(self.all())

    def resident_mb(self) -> float:
        """Return the resident memory of all processes. A page that several share counts for each."""
        return sum(map(resident_mb, self.all()))


class Server(NamedTuple):
    """A running server. start_s: time from its command to its first answer."""

    processes: Processes
    start_s: float


@contextlib.contextmanager
def running(
    command: Sequence[str], endpoint: Endpoint, env: Mapping[str, str], text: str
) -> Iterator[Server]:
    """Start a server in its own folder, and wait until it answers `text`. Raises CannotMeasure."""
    with tempfile.TemporaryDirectory(prefix="peer-") as folder, tempfile.TemporaryFile("w+b") as log:
        began = time.monotonic()
        process = subprocess.Popen(
            command, cwd=folder, env=dict(env), stdout=log, stderr=log, process_group=0
        )  # a process group, which Paddle Serving kills when it fails; no session, see `neighbours`
        processes = Processes(process.pid)
        try:
            _wait_until_answered(process, lambda: endpoint.ask(text), log.fileno())
            yield Server(processes, time.monotonic() - began)
        finally:
            _stop(process, processes)


def _wait_until_answered(process: subprocess.Popen[bytes], ask: Callable[[], Answer], log: int) -> None:
    until = time.monotonic() + _START_S
    why = ""
    while time.monotonic() < until and process.poll() is None:
        try:
            ask()
        except (OSError, http.client.HTTPException, ValueError, KeyError) as exc:
            why = str(exc)
            time.sleep(_POLL_S)
        else:
            return
    size = os.fstat(log).st_size
    written = os.pread(log, 3000, max(0, size - 3000)).decode(errors="replace")
    raise CannotMeasure(f"it did not answer ({why}):\n{written}")


def _stop(process: subprocess.Popen[bytes], processes: Processes) -> None:
    """Stop a server as its documentation says, then kill its remaining processes."""
    descendants = processes.all()
    process.send_signal(signal.SIGTERM)
    until = time.monotonic() + _STOP_S
    while time.monotonic() < until and any(map(_runs, descendants)):
        process.poll()
        time.sleep(0.1)
    for pid in descendants:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
