"""RepositoryProcess: a model repository as a user serves it, on ports of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.free_ports import free_port
from tests.support.service_process import ROOT, ServiceProcess


class RepositoryProcess(ServiceProcess):
    """`paddlewheel serve --model-repository ...`, stopped on leaving the `with` block."""

    def __init__(
        self,
        *folders: Path,
        arguments: Sequence[str] = (),
        wait: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> None:
        ports = {"http_port": free_port(), "rpc_port": free_port()}
        self.metrics_port = free_port()
        options = [f"--model-repository={folder}" for folder in folders]
        options += [f"--http-port={ports['http_port']}", f"--grpc-port={ports['rpc_port']}"]
        options += [f"--metrics-port={self.metrics_port}", *arguments]
        started = ["pipeline", "serve", *options]
        super().__init__("-m", ports, arguments=started, folder=ROOT, wait=wait, env=env)
