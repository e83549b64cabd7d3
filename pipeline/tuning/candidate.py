"""Runs a service with candidate settings for `paddlewheel tune`: starts it on free ports, and loads it."""

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
from pipeline.process.folders import make_held, remove_leftovers
from pipeline.process.helper_process import HelperFailed, run_helper
from pipeline.process.processes import RunningService, cpu_ticks, proportional_bytes, python_module
from pipeline.tuning.auto import MAX_SECONDS
from pipeline.tuning.closed_loop import Load, LoadResult, build_http_request
from pipeline.tuning.sample import SampleRequest
from pipeline.tuning.tune import MODEL_SECTION, Round, Settings

STOP_S = 10.0
_ASK_S = 30.0
_PRINT_CONFIG_S = 600.0
_ERROR_LINES = 3
_POLL_S = 0.02
_PREFIX, _SUFFIX = ".tune-", ".yml"  # of a candidate's configuration
_TICKS = os.sysconf("SC_CLK_TCK")
# Sections that a measurement does not need: other ports, certificates, API keys, log files.
_IGNORED_SECTIONS = ("v2", "tls", "security", "logging")


class NotStarted(ServingError):
    """Raised if a service with the tuned settings does not start, or answers no request.

    The search then skips these settings.
    """


class Script:
    """The user's service (script and config.yml), from which services with other settings are started."""

    def __init__(
        self, script: Path, config: Path, op: str, candidate_config: Path, ports: Sequence[int]
    ) -> None:
        """candidate_config: path of the temporary config.yml of each candidate.

        ports: free ports for HTTP and gRPC.
        """
        self.config = config
        self.op = op
        self._script = script
        self._source_config = read_yaml(config)
        self._candidate_config = candidate_config
        self._http_port, self._rpc_port = ports

    def resolved(self, settings: Settings | None = None) -> dict[str, Any]:
        """Return the whole configuration with these settings and all defaults, as `--print-config` prints it.

        settings: None for config.yml as it is. Raises ConfigError with all errors of the configuration.
        """
        self._write_config(settings)
        try:
            done = run_helper(*self._command("--print-config"), timeout_s=_PRINT_CONFIG_S)
        except HelperFailed as exc:
            raise ConfigError(f"{self._script} --print-config {exc.message}") from exc
        if done.status:
            raise ConfigError(done.stderr.strip().replace(str(self._candidate_config), str(self.config)))
        # The configuration comes last, after the output of the script itself.
        printed = re.split(r"^(?=http_port:)", done.stdout, flags=re.M)[-1]
        resolved: dict[str, Any] = yaml.safe_load(printed)
        return resolved

    @contextlib.contextmanager
    def started(self, settings: Settings | None, until: float) -> Iterator[Candidate]:
        """Context manager: run the service with these settings, and stop the service at the end.

        settings: None for config.yml as it is. Raises NotStarted if the service is not ready at `until` (an
        instant of `time.monotonic`).
        """
        self._write_config(settings)
        with tempfile.TemporaryFile() as log:  # without a name, so that a kill leaves nothing
            module, *arguments = self._command()
            process = subprocess.Popen(
                [*python_module(module, parent=os.getpid()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Each candidate is measured here, so `auto` in it needs no race of its own.
                env={**os.environ, **({} if settings is None else {MAX_SECONDS: "0"})},
            )
            try:
                candidate = Candidate(process, self._http_port, path_of_descriptor(log.fileno()))
                candidate.wait_until_ready(until)
                yield candidate
            finally:
                end_process(process)

    def _command(self, *options: str) -> list[str]:
        """Return the command that starts the service: a Python module and its arguments.

        The module is given by name, because the CLI is a layer above this package.
        """
        return ["pipeline", "run", "--config", str(self._candidate_config), *options, str(self._script)]

    def _write_config(self, settings: Settings | None) -> None:
        """Write the temporary config.yml with these settings."""
        config = {key: value for key, value in self._source_config.items() if key not in _IGNORED_SECTIONS}
        dag = {**(config.get("dag") or {}), "enable_prometheus": False}
        dag.update(drain_delay=0, drain_timeout=1)
        op = dict(config.get("op") or {})
        if settings is not None:
            section = op[self.op] = settings.laid_over(op[self.op])
            if settings.precision != self._source_config["op"][self.op][MODEL_SECTION].get(
                "precision", "fp32"
            ):
                section[MODEL_SECTION]["strict_precision"] = True  # else it would be fp32, with a warning
        if not {"tls", "security"}.isdisjoint(self._source_config):
            config.setdefault("shards", 1)  # with these sections one front serves
        config |= {"http_port": self._http_port, "rpc_port": self._rpc_port, "dag": dag, "op": op}
        self._candidate_config.write_text(yaml.safe_dump(config, allow_unicode=True), "utf-8")


@contextlib.contextmanager
def opened(script: Path, config: Path, op: str) -> Iterator[Script]:
    """Context manager: yield a `Script` with two reserved ports and a temporary config.yml for candidates.

    The file is beside config.yml, so that relative paths stay valid. Raises ConfigError if the folder can't
    be written.
    """
    with contextlib.ExitStack() as stack:
        ports = stack.enter_context(reserved_ports(2))
        folder = config.absolute().parent
        remove_leftovers(folder, f"{_PREFIX}*{_SUFFIX}")
        try:
            path, lock = make_held(partial(_make_file, folder))
        except OSError as exc:
            raise ConfigError(
                f"{folder} can't be written ({exc.strerror}): the configuration to measure is written there"
            ) from exc
        stack.callback(os.close, lock)
        stack.callback(path.unlink)
        yield Script(script, config, op, path, ports)


@contextlib.contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Context manager: reserve and yield free ports for services that this process starts."""
    with contextlib.ExitStack() as stack:
        holders = [stack.enter_context(socket.socket()) for _ in range(count)]
        for holder in holders:
            holder.bind(("127.0.0.1", 0))
            # Only after bind: candidates set it too and may listen, and no other process gets the port.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield [holder.getsockname()[1] for holder in holders]


def _make_file(folder: Path) -> str:
    """Create a temporary file in the folder for a candidate's config.yml, and return its path."""
    number, path = tempfile.mkstemp(_SUFFIX, _PREFIX, folder)
    os.close(number)
    return path


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End a service by SIGTERM, and by SIGKILL if it has not ended after `STOP_S`."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def path_of_descriptor(descriptor: int) -> Path:
    """Return a /proc path by which this user's other processes can open an unnamed file of this process."""
    return Path(f"/proc/{os.getpid()}/fd/{descriptor}")


class Candidate:
    """A running service with candidate settings. Its methods send requests and load tests to the service."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self._process = process
        self._port = port
        self._log = log

    def wait_until_ready(self, until: float) -> None:
        """Wait until all instances are ready.

        Raises NotStarted if the service ends, or is not ready at `until`.
        """
        while True:
            if self._process.poll() is not None:
                raise NotStarted(f"its start ended with {self._process.returncode}: {self._last_log_lines()}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                state = json.loads(self.get("/health/ready")[1])
                if all(op["ready"] >= op["instances"] for op in state["ops"].values()):
                    return
            if time.monotonic() > until:
                raise NotStarted(f"it was not ready in the time that was left: {self._last_log_lines()}")
            time.sleep(_POLL_S)

    def get(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send a GET, or a POST with a body, and return status and body of the response.

        Raises OSError or http.client.HTTPException if no response arrives.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ASK_S)
        with contextlib.closing(connection):
            connection.request("GET" if body is None else "POST", path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def refusal(self, request: SampleRequest) -> str:
        """Send a request, and return the error with which the service rejects it; empty on success."""
        try:
            status, body = self.get(request.path, request.body)
            answer = json.loads(body)
        except (OSError, http.client.HTTPException, ValueError) as exc:
            return f"it got no answer ({exc})"
        if status == 200 and not answer.get("err_no"):
            return ""
        return str(answer.get("err_msg") or answer.get("error") or f"HTTP status {status}")

    def answer_s(self, request: SampleRequest) -> float:
        """Send a request on a new connection, and return its latency in seconds."""
        begun = time.perf_counter()
        self.refusal(request)
        return time.perf_counter() - begun

    def load(
        self, requests: Sequence[SampleRequest], connections: int, seconds: float, warm_s: float
    ) -> Round:
        """Send requests for `seconds` over some connections in a closed loop, and return the measurement.

        warm_s: seconds of load before the measurement, which are not counted. Raises NotStarted if no request
        was answered.
        """
        sent = tuple(build_http_request(request.path, request.body) for request in requests)
        load = Load(self._port, sent, connections, seconds, warm_s, _ASK_S)
        before = self._cpu_s()
        result = _run(load)
        # The difference includes the warm-up: scale it by the share of the counted time.
        cpu_s = (self._cpu_s() - before) * seconds / (seconds + warm_s)
        if not result.latencies_ms:
            raise NotStarted(
                f"it answered nothing in {seconds:g} s: {result.error or self._last_log_lines()}"
            )
        return Round(connections, seconds, tuple(result.latencies_ms), cpu_s, result.failed, result.error)

    def memory_bytes(self) -> int:
        """Return the memory of the service's front process and workers, in bytes."""
        return sum(map(proportional_bytes, self._pids()))

    def _cpu_s(self) -> float:
        """Return the CPU seconds that the service's front process and workers have used since their start."""
        return sum(map(cpu_ticks, self._pids())) / _TICKS

    def _pids(self) -> list[int]:
        service = RunningService(self._process.pid, None, ())
        return [service.pid, *service.worker_pids()]

    def _last_log_lines(self) -> str:
        """Return the last lines that the service has printed, for an error message."""
        lines = self._log.read_text("utf-8", errors="replace").strip().splitlines()
        return " ".join(lines[-_ERROR_LINES:])


def _run(load: Load) -> LoadResult:
    """Run the load generator in a child process, and return the result. Raises NotStarted if it fails."""
    with tempfile.TemporaryFile() as file:
        answer = path_of_descriptor(file.fileno())
        try:
            done = run_helper(
                "pipeline.tuning.closed_loop",
                str(answer),
                stdin=msgspec.msgpack.encode(load),
                timeout_s=load.warm_s + load.seconds + 2 * load.timeout_s,
            )
        except HelperFailed as exc:
            raise NotStarted(f"its load generator {exc.message}") from exc
        if done.status:
            errors = done.stderr.strip().splitlines()[-1:]
            raise NotStarted(f"it can't be asked: {' '.join(errors)}")
        return msgspec.msgpack.decode(answer.read_bytes(), type=LoadResult)
