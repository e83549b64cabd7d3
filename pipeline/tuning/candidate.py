"""A service as it would run with other settings: started on free ports, loaded, and ended."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import yaml

from pipeline.config.report import read_yaml
from pipeline.errors import ConfigError, ServingError
from pipeline.process.leftovers import make_held, remove_leftovers
from pipeline.process.processes import RunningService, cpu_ticks, python_module
from pipeline.tuning.closed_loop import Load, Seen
from pipeline.tuning.frontier import Round
from pipeline.tuning.sample import Asked
from pipeline.tuning.settings import MODEL_SECTION, Settings

STOP_S = 10.0
_ASK_S = 30.0
_SAID_LINES = 3
_POLL_S = 0.02
_PREFIX, _SUFFIX = ".tune-", ".yml"  # of a candidate's configuration
_TICKS = os.sysconf("SC_CLK_TCK")
# What measuring has no use for: other ports, certificates, keys that the load would have to show, log files.
_LEFT_OUT = ("v2", "tls", "security", "logging")


class NotStarted(ServingError):
    """A candidate whose service did not start, or does not answer what it is asked."""


class Script:
    """A service's script and its config.yml, from which candidates are started.

    own: where the configuration of each candidate is written. ports: for HTTP and gRPC.
    """

    def __init__(self, script: Path, config: Path, op: str, own: Path, ports: Sequence[int]) -> None:
        self.config = config
        self.op = op
        self._script = script
        self._given = read_yaml(config)
        self._path = own
        self._http_port, self._rpc_port = ports

    def resolved(self, settings: Settings | None = None) -> dict[str, Any]:
        """What is in force with the settings, as `--print-config` has it.

        Raises ConfigError with all flaws.
        """
        self._write(settings)
        done = subprocess.run(
            self._command("--print-config"), capture_output=True, text=True, check=False, timeout=600
        )
        if done.returncode:
            raise ConfigError(done.stderr.strip().replace(str(self._path), str(self.config)))
        # The configuration comes last: before it stands what the script itself prints.
        printed = re.split(r"^(?=http_port:)", done.stdout, flags=re.M)[-1]
        resolved: dict[str, Any] = yaml.safe_load(printed)
        return resolved

    @contextlib.contextmanager
    def started(self, settings: Settings | None, until: float) -> Iterator[Candidate]:
        """The service with these settings, or as config.yml has it. Raises NotStarted where it is not ready
        by then (`time.monotonic`)."""
        self._write(settings)
        with tempfile.TemporaryFile() as log:  # without a name, so that a kill leaves nothing
            process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
            try:
                candidate = Candidate(process, self._http_port, _path_of_descriptor(log.fileno()))
                candidate.wait_until_ready(until)
                yield candidate
            finally:
                process.terminate()
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _command(self, *options: str) -> list[str]:
        run = ["run", "--config", str(self._path), *options, str(self._script)]
        return [*python_module("pipeline.tuning.served"), str(os.getpid()), *run]

    def _write(self, settings: Settings | None) -> None:
        config = {key: value for key, value in self._given.items() if key not in _LEFT_OUT}
        dag = {**(config.get("dag") or {}), "enable_prometheus": False}
        dag.update(drain_delay=0, drain_timeout=1)
        op = dict(config.get("op") or {})
        if settings is not None:
            section = op[self.op] = settings.laid_over(op[self.op])
            if settings.precision != self._given["op"][self.op][MODEL_SECTION].get("precision", "fp32"):
                section[MODEL_SECTION]["strict_precision"] = True  # else it would be fp32, with a warning
        config |= {"http_port": self._http_port, "rpc_port": self._rpc_port, "dag": dag, "op": op}
        self._path.write_text(yaml.safe_dump(config, allow_unicode=True), "utf-8")


@contextlib.contextmanager
def opened(script: Path, config: Path, op: str) -> Iterator[Script]:
    """A script with two free ports that are held for it, and a file beside config.yml for candidates, where
    relative paths mean the same. Raises ConfigError where nothing can be written there."""
    with contextlib.ExitStack() as stack:
        holders = [stack.enter_context(socket.socket()) for _ in range(2)]
        for holder in holders:
            holder.bind(("127.0.0.1", 0))
            # Only now: who sets it may listen there beside us, and the kernel gives the port to no other.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        folder = config.absolute().parent
        remove_leftovers(folder, f"{_PREFIX}*{_SUFFIX}")
        try:
            path, lock = make_held(partial(_make_file, folder))
        except OSError as exc:
            raise ConfigError(f"{folder} can't be written ({exc.strerror}): tune writes there") from exc
        stack.callback(os.close, lock)
        stack.callback(path.unlink)
        yield Script(script, config, op, path, [holder.getsockname()[1] for holder in holders])


def _make_file(folder: Path) -> str:
    number, path = tempfile.mkstemp(_SUFFIX, _PREFIX, folder)
    os.close(number)
    return path


def _path_of_descriptor(descriptor: int) -> Path:
    """Return a path by which other processes of this user open a file without a name."""
    return Path(f"/proc/{os.getpid()}/fd/{descriptor}")


class Candidate:
    """A running service that is measured."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self._process = process
        self._port = port
        self._log = log

    def wait_until_ready(self, until: float) -> None:
        while True:
            if self._process.poll() is not None:
                raise NotStarted(f"its start ended with {self._process.returncode}: {self._said()}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                state = json.loads(self.get("/health/ready")[1])
                if all(op["ready"] >= op["instances"] for op in state["ops"].values()):
                    return
            if time.monotonic() > until:
                raise NotStarted(f"it was not ready in the time that was left: {self._said()}")
            time.sleep(_POLL_S)

    def get(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body of an answer. Raises OSError and http.client.HTTPException."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ASK_S)
        with contextlib.closing(connection):
            connection.request("GET" if body is None else "POST", path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def refusal(self, asked: Asked) -> str:
        """Why the service does not answer a request; empty where it does."""
        try:
            status, body = self.get(asked.path, asked.body)
            answer = json.loads(body)
        except (OSError, http.client.HTTPException, ValueError) as exc:
            return f"it got no answer ({exc})"
        if status == 200 and not answer.get("err_no"):
            return ""
        return str(answer.get("err_msg") or answer.get("error") or f"HTTP status {status}")

    def answer_s(self, asked: Asked) -> float:
        """How long an answer takes, on a connection of its own."""
        begun = time.perf_counter()
        self.refusal(asked)
        return time.perf_counter() - begun

    def load(self, requests: Sequence[Asked], connections: int, seconds: float, warm_s: float) -> Round:
        """One round. Raises NotStarted where nothing was answered."""
        sent = tuple((asked.path, asked.body) for asked in requests)
        load = Load(self._port, sent, connections, seconds, warm_s, _ASK_S, os.getpid())
        before = self._cpu_s()
        seen = _run(load)
        # Of the warm-up, too: by its share of the time.
        cpu_s = (self._cpu_s() - before) * seconds / (seconds + warm_s)
        if not seen.latencies_ms:
            raise NotStarted(f"it answered nothing in {seconds:g} s: {seen.error or self._said()}")
        return Round(connections, seconds, tuple(seen.latencies_ms), cpu_s, seen.failed, seen.error)

    def _cpu_s(self) -> float:
        """CPU time of the front and its workers so far."""
        service = RunningService(self._process.pid, None, ())
        return sum(map(cpu_ticks, [service.pid, *service.worker_pids()])) / _TICKS

    def _said(self) -> str:
        lines = self._log.read_text("utf-8", errors="replace").strip().splitlines()
        return " ".join(lines[-_SAID_LINES:])


def _run(load: Load) -> Seen:
    with tempfile.TemporaryFile() as file:
        answer = _path_of_descriptor(file.fileno())
        done = subprocess.run(
            [*python_module("pipeline.tuning.closed_loop"), str(answer)],
            input=msgspec.msgpack.encode(load),
            capture_output=True,
            check=False,
            timeout=load.warm_s + load.seconds + 2 * load.timeout_s,
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise NotStarted(f"it can't be asked: {' '.join(said)}")
        return msgspec.msgpack.decode(answer.read_bytes(), type=Seen)
