"""AgentProcess: `paddlewheel agent` as an operator starts it, for services with workers on other nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.free_ports import free_port
from tests.support.network_namespace import NetworkNamespace
from tests.support.service_process import APPS, ROOT, ServiceProcess

TOKEN = "0123456789abcdef"


class AgentProcess:
    """An agent on a free port of this machine, killed with its workers at the end of the `with` block.

    folder: for the token file and the log. env: more variables, which its workers inherit. namespace: of the
    network; None: that of this process.
    """

    def __init__(
        self,
        folder: Path,
        *,
        token: str = TOKEN,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        port: int = 0,
        namespace: NetworkNamespace | None = None,
    ) -> None:
        self.port = port or free_port()
        host = "127.0.0.1" if namespace is None else namespace.host
        self.address = f"{'localhost' if namespace is None else host}:{self.port}"
        self._log_path = folder / f"agent-{self.port}.log"
        token_file = folder / f"token-{self.port}"
        token_file.write_text(f"{token}\n", "utf-8")
        prefix = [] if namespace is None else namespace.command_prefix
        command = [*prefix, sys.executable, "-m", "pipeline", "agent", "--address", f"{host}:{self.port}"]
        self._command = [*command, "--token-file", str(token_file), *options]
        search_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._env = {**os.environ, "PYTHONPATH": search_path, **(env or {})}
        self.start()

    def start(self) -> None:
        """Start the agent, the first time or when it has ended."""
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, cwd=APPS, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def __enter__(self) -> AgentProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def log(self) -> str:
        return self._log_path.read_text("utf-8", errors="replace")

    def worker_pids(self) -> list[int]:
        """The workers of the agent, oldest first."""
        pids: list[int] = []
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{self.process.pid}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
        return sorted(pids)

    def kill(self) -> None:
        """SIGKILL, as when the power of the node fails: its workers die with it."""
        self.process.kill()
        self.process.wait()

    @contextlib.contextmanager
    def partitioned(self) -> Iterator[None]:
        """Let agent and workers stand still: to the front, the node sends nothing more."""
        pids = [self.process.pid, *self.worker_pids()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in reversed(pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def run_on_agents(
    folder: Path,
    config: Mapping[str, Any],
    *,
    app: str = "echo.py",
    agents: int = 2,
    options: Sequence[str] = (),
    nodes: Mapping[str, Any] | None = None,
    namespace: NetworkNamespace | None = None,
) -> Iterator[tuple[ServiceProcess, list[AgentProcess]]]:
    """Run a service whose workers are on several agents of this machine, until each instance is ready.

    options: of the agents. nodes: more keys of the section of this name. namespace: of the first agent.
    """
    ports = [free_port() for _ in range(agents)]
    hosts = ["localhost" if namespace is None else namespace.host, *["localhost"] * (agents - 1)]
    token_file = folder / "token"
    token_file.write_text(TOKEN, "utf-8")
    section = {
        "agents": [f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)],
        "token_file": str(token_file),
        **(nodes or {}),
    }
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(ServiceProcess(APPS / app, {**config, "nodes": section}, wait=False))
        env = {"SERVICE_CONFIG": str(service.config_path)}  # the script reads it in each worker
        processes = [
            stack.enter_context(
                AgentProcess(folder, options=options, env=env, port=port, namespace=in_namespace)
            )
            for port, in_namespace in zip(ports, [namespace, *[None] * (agents - 1)], strict=True)
        ]
        service.wait_until_ready(every_instance=True)
        yield service, processes
