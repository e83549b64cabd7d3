"""ServiceProcess: a service script as a user starts it, on ports of its own, for tests and measurements."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import yaml

from client.protos.pipeline_service_pb2 import Request, Response
from client.tls import Tls
from tests.support.free_ports import free_port

ROOT = Path(__file__).resolve().parents[2]
APPS = ROOT / "tests" / "apps"
RPC_METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
PATIENCE_S = 60.0  # what a test waits at most for something that takes milliseconds on a free machine
MEASURES_COVERAGE = "COVERAGE_PROCESS_CONFIG" in os.environ
_SAVING_S = 10.0
_POLL_S = 0.02


class HttpAnswer(NamedTuple):
    """One answer; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ServiceProcess:
    """A running service, stopped with all its workers on leaving the `with` block.

    script: a service script, or the folder of its web_service.py. config: the content of config.yml; free
    ports are put in, and it is written to a file whose path the script finds in the environment as
    SERVICE_CONFIG, and in place of "{config}" among `arguments`. beside: the contents of other files in its
    folder, by name. name: of the service, for `ask`. tls: what is trusted and shown where the config has
    `tls`. stdout: where standard output goes; else into `log`.
    """

    def __init__(
        self,
        script: str | Path,
        config: Mapping[str, Any] | None = None,
        *,
        name: str = "test",
        arguments: Sequence[str] = (),
        beside: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
        wait: bool = True,
        tls: Tls | None = None,
        stdout: int | None = None,
    ) -> None:
        self.name = name
        self.tls = tls
        self._stack = contextlib.ExitStack()
        work = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        resolved = {**(config or {})}
        self.http_port = resolved.setdefault("http_port", free_port())
        self.rpc_port = resolved.setdefault("rpc_port", free_port())
        # Tests read a figure right after what changes it.
        resolved["limits"] = {"metrics_interval_s": 0, **resolved.get("limits", {})}
        self.config_path = work / "config.yml"
        self.config_path.write_text(yaml.safe_dump(resolved), "utf-8")
        for file, content in (beside or {}).items():
            (work / file).write_text(content, "utf-8")
        self._log_path = work / "log"
        path = Path(script)
        path = path / "web_service.py" if path.is_dir() else path
        options = [argument.replace("{config}", str(self.config_path)) for argument in arguments]
        search_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        own = {"PYTHONPATH": search_path, "SERVICE_CONFIG": str(self.config_path)}
        self._command = [sys.executable, str(path), *options]
        self._env = {**os.environ, **own, **(env or {})}
        self._folder = folder or path.parent
        self._stdout = stdout
        self.start()
        self._stack.callback(self._end)
        if wait:
            try:
                self.wait_until_ready()
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> ServiceProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the script, the first time or when it has ended."""
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log if self._stdout is None else self._stdout,
                stderr=log,
            )

    def close(self) -> None:
        self._stack.close()

    # What it says:

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.http_port}"

    @property
    def log(self) -> str:
        """Everything the service has written to stdout and stderr."""
        return self._log_path.read_text("utf-8", errors="replace")

    @property
    def rpc_address(self) -> str:
        return f"127.0.0.1:{self.rpc_port}"

    def wait_until_ready(self, timeout_s: float = 2 * PATIENCE_S, *, every_instance: bool = False) -> None:
        """Raises AssertionError with the log when the service ends or does not become ready."""

        def ready() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"the service left with {self.process.returncode}:\n{self.log}")
            try:
                answer = self.http("/health/ready")
            except OSError:
                return False
            if every_instance:
                return all(op["ready"] == op["instances"] for op in answer.json["ops"].values())
            return answer.status == 200

        wait_until(ready, "the service is ready", timeout_s, on_timeout=lambda: self.log)

    def wait_for_log(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self.log.count(text) >= times, f"{text!r} is logged", on_timeout=lambda: self.log)

    # Asking it:

    def http(
        self,
        path: str,
        body: bytes | str | None = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> HttpAnswer:
        """One request on a connection of its own: GET, or POST when there is a body."""
        connection = self.connection(timeout_s)
        with contextlib.closing(connection):
            data = body.encode() if isinstance(body, str) else body
            connection.request(method or ("GET" if data is None else "POST"), path, data, dict(headers or {}))
            return read_answer(connection)

    def connection(self, timeout_s: float = PATIENCE_S) -> http.client.HTTPConnection:
        """A connection of its own to the HTTP port."""
        if self.tls is None:
            return http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=timeout_s)
        context = self.tls.context()
        return http.client.HTTPSConnection("127.0.0.1", self.http_port, timeout=timeout_s, context=context)

    def ask(self, inputs: Mapping[str, str], *, method: str = "prediction") -> dict[str, Any]:
        """The answer to a key/value request over HTTP, `err_no` and all."""
        answer: dict[str, Any] = self.http(f"/{self.name}/{method}", key_value(inputs)).json
        return answer

    def predict(self, inputs: Mapping[str, str], *, method: str = "prediction") -> dict[str, str]:
        """The outputs by name; AssertionError when the service refuses."""
        answer = self.ask(inputs, method=method)
        assert answer["err_no"] == 0, answer
        return dict(zip(answer["key"], answer["value"], strict=True))

    def ask_together(
        self, requests: Sequence[Mapping[str, str]], held: Mapping[str, str], gate: Path
    ) -> list[dict[str, Any]]:
        """The answers to requests that were all queued while the only worker was held busy.

        `held` is a request that touches `<gate>.waiting` and then waits for the file `gate`. It is sent
        twice: a fast worker may be given one more dispatch early, and so gets this one, not one of ours.
        """
        with ThreadPoolExecutor(len(requests) + 2) as pool, contextlib.ExitStack() as at_last:
            at_last.callback(gate.touch)
            holding = [pool.submit(self.ask, held)]
            wait_until(Path(f"{gate}.waiting").exists, "the worker is busy")
            holding.append(pool.submit(self.ask, held))
            self._wait_for_pending(2)
            futures = [pool.submit(self.ask, request) for request in requests]
            self._wait_for_pending(2 + len(requests))
            gate.touch()
            for future in holding:
                assert future.result()["err_no"] == 0
            return [future.result() for future in futures]

    def _wait_for_pending(self, number: int) -> None:
        pending = "paddlewheel_pending_requests"
        wait_until(lambda: self.metric(pending) == number, f"{number} requests are admitted")

    def rpc(self, message: Request | Mapping[str, str], *, timeout_s: float = PATIENCE_S) -> Response:
        """The answer over gRPC; a mapping is sent as key and value. Raises grpc.RpcError."""
        if not isinstance(message, Request):
            message = Request(name=self.name, key=list(message), value=list(message.values()))
        return Response.FromString(self.raw_rpc(message.SerializeToString(), timeout_s=timeout_s))

    def raw_rpc(
        self, data: bytes, *, timeout_s: float | None = PATIENCE_S, method: str = RPC_METHOD
    ) -> bytes:
        """The bytes that these bytes are answered with."""
        with self.channel() as channel:
            answer: bytes = channel.unary_unary(method)(data, timeout=timeout_s)
            return answer

    def channel(self) -> grpc.Channel:
        """A connection of its own to the gRPC port."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        if self.tls is None:
            return grpc.insecure_channel(self.rpc_address, options)
        return grpc.secure_channel(self.rpc_address, self.tls.credentials(), options)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a sample over all label sets that have these labels; 0 when there is none."""
        pattern = re.compile(rf"^{re.escape(name)}(?:\{{(.*)\}})? (\S+)$", re.MULTILINE)
        found = pattern.findall(self.http("/metrics").body.decode())
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(float(value) for given, value in found if all(label in given for label in wanted))

    def answered(self) -> dict[str, int]:
        """Requests so far by outcome: "ok" or the err_no."""
        counts: dict[str, int] = {}
        for line in self.http("/metrics").body.decode().splitlines():
            if line.startswith("paddlewheel_requests_total{"):
                err_no = line.partition('err_no="')[2].partition('"')[0]
                counts[err_no] = counts.get(err_no, 0) + int(float(line.rpartition(" ")[2]))
        return counts

    # Its processes:

    def worker_pids(self) -> list[int]:
        """The front's workers, oldest first."""
        return self._children("pipeline.worker")

    def output_reader(self) -> int:
        """The process that makes log lines of what the others print."""
        (pid,) = self._children("pipeline.output")
        return pid

    def _children(self, module: str) -> list[int]:
        pids: list[int] = []
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{self.process.pid}/task").iterdir():
                with contextlib.suppress(OSError):  # a thread that has ended meanwhile
                    pids += map(int, (task / "children").read_text().split())
        return sorted(pid for pid in pids if module in command_line(pid))

    def kill_worker(self, number: int = 0) -> int:
        """SIGKILL for one worker; its pid."""
        pid = self.worker_pids()[number]
        os.kill(pid, signal.SIGKILL)
        return pid

    def terminate(self) -> None:
        """SIGTERM for the front, as an init system sends it."""
        self.process.send_signal(signal.SIGTERM)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Have the front stand still: what arrives meanwhile it finds at once, in the order of arrival."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            # A signal takes its time, and until then the front could still take what is sent.
            wait_until(lambda: _state(self.process.pid) == "T", "the front is stopped")
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def exit_code(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the service's end."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the service did not end:\n{self.log}") from None

    def _end(self) -> None:
        workers = self.worker_pids()
        if MEASURES_COVERAGE and self.process.poll() is None:  # who is killed saves nothing of it
            self.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_SAVING_S)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pid in workers:  # the kernel kills them with the front; this is for a front that is broken
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def key_value(inputs: Mapping[str, str]) -> bytes:
    """The body of a key/value request."""
    return json.dumps({"key": list(inputs), "value": list(inputs.values())}).encode()


def read_answer(connection: http.client.HTTPConnection) -> HttpAnswer:
    """The answer to the request just sent on the connection."""
    response = connection.getresponse()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return HttpAnswer(response.status, headers, response.read())


def wait_until(
    condition: Callable[[], object],
    what: str,
    timeout_s: float = PATIENCE_S,
    on_timeout: Callable[[], str] = lambda: "",
) -> None:
    """Poll until the condition holds. Raises AssertionError after `timeout_s`."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"waited {timeout_s:g} s in vain until {what}\n{on_timeout()}")
        time.sleep(_POLL_S)


def command_line(pid: int) -> str:
    """How a process was started; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    """Whether the process lives; a zombie does not."""
    try:
        return _state(pid) not in "ZX"
    except OSError:
        return False


def _state(pid: int) -> str:
    """The state of the process's main thread, as `ps` tells it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
