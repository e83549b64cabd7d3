"""A page of docs/ that is followed as a reader would: its files written, its commands run, in its order."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.curl_commands import run_curl
from tests.support.free_ports import free_port
from tests.support.service_process import ROOT, HttpAnswer, ServiceProcess

_PORTS = {"18082": "http_port", "8088": "rpc_port"}  # those of the page, and which of ours each stands for


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file it goes to ("" for none), its text."""

    language: str
    title: str
    text: str


def blocks_of(document: Path) -> list[Block]:
    fenced = re.compile(r'^```(\w+)(?: title="([^"\n]+)")?\n(.*?)^```$', re.M | re.S)
    return [Block(*groups) for groups in fenced.findall(document.read_text("utf-8"))]


@dataclass
class Reader:
    """Follows a page in a folder, on ports of its own. answers: to each curl, with the answer that is shown.
    printed: what each other command wrote."""

    folder: Path
    answers: list[tuple[HttpAnswer, Any]] = field(default_factory=list)
    printed: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in _PORTS.values()})
    service: ServiceProcess | None = None

    def follow(self, page: Path) -> None:
        try:
            for block in blocks_of(page):
                self._do(block)
        finally:
            self._stop()

    def run_commands(self, commands: Sequence[str]) -> None:
        """Run commands in their order. The service that one of them starts ends after the last."""
        try:
            for command in commands:
                self._run(command)
        finally:
            self._stop()

    def _do(self, block: Block) -> None:
        if block.title:
            file = self.folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.on_own_ports(block.text), "utf-8")
        elif block.language == "json":
            self.answers[-1] = (self.answers[-1][0], json.loads(block.text))
        elif block.language == "sh":
            for command in block.text.splitlines():
                self._run(command)

    def _run(self, command: str) -> None:
        if match := re.fullmatch(r"python3 (\w+/web_service\.py)", command):
            script = self.folder / match[1]
            self._start(script, script.parent.name)
        elif match := re.fullmatch(r"paddlewheel run ([\w/]+)", command):
            self._start("-m", Path(match[1]).name, ["pipeline", "run", match[1]])
        elif match := re.fullmatch(r"paddlewheel serve --model-repository (\w+) .*", command):
            http, grpc = (self.ports[name] for name in ("http_port", "rpc_port"))
            options = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={free_port()}"]
            self._start("-m", match[1], ["pipeline", "serve", f"--model-repository={match[1]}", *options])
        elif match := re.fullmatch(r"paddlewheel (?:text (\w+).*|new (\w+) .*--run)", command):
            arguments = ["pipeline", *shlex.split(command)[1:], *self._port_options()]
            self._start("-m", match[1] or match[2], arguments)
        elif command.startswith("curl "):
            assert self.service is not None
            self.answers.append((run_curl(command, self.service, self.folder), None))
        else:
            self.printed[command] = self._shell(self.on_own_ports(command))

    def _shell(self, command: str) -> str:
        if command.startswith("paddlewheel new "):
            command += f" {shlex.join(self._port_options())}"
        python = Path(sys.executable).parent
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{python}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _port_options(self) -> list[str]:
        return [f"--{name.replace('_', '-')}={port}" for name, port in self.ports.items()]

    def on_own_ports(self, text: str) -> str:
        for shown, own in _PORTS.items():
            text = text.replace(f"localhost:{shown}", f"localhost:{self.ports[own]}")
            text = text.replace(f"{own}: {shown}", f"{own}: {self.ports[own]}")
        return text

    def _start(self, script: str | Path, name: str, arguments: Sequence[str] = ()) -> None:
        self._stop()
        self.service = ServiceProcess(script, self.ports, name=name, arguments=arguments, folder=self.folder)

    def _stop(self) -> None:
        if self.service is None or self.service.process.poll() is not None:
            return
        self.service.terminate()
        try:
            assert self.service.exit_code() == 0
        finally:
            self.service.close()
