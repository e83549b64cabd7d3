"""Services that `paddlewheel new` has written, started by the command that it prints."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.command_line import paddlewheel
from tests.support.curl_commands import run_curl
from tests.support.free_ports import free_port
from tests.support.service_process import HttpAnswer, ServiceProcess


class NewService(NamedTuple):
    """A running service, and what `new` printed when it was called in `folder`."""

    service: ServiceProcess
    printed: str
    folder: Path

    @property
    def question(self) -> str:
        """The command that asks it."""
        return command_in(self.printed, "curl")

    def ask(self) -> HttpAnswer:
        """The answer to the command that was printed."""
        return run_curl(self.question, self.service, self.folder)


@contextlib.contextmanager
def new_service(
    folder: Path, model: Path, name: str, *options: str, measures: bool = False
) -> Iterator[NewService]:
    """What `new` writes to `folder / name`.

    measures: whether the engine is chosen by its times, as the file says; else it is ONNX Runtime at once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ports = {"http_port": free_port(), "rpc_port": free_port()}
    listening = ("--http-port", str(ports["http_port"]), "--rpc-port", str(ports["rpc_port"]))
    done = paddlewheel("new", name, "--model", str(model), *options, *listening, cwd=folder)
    assert done.returncode == 0, done.stderr
    if not measures:
        config = folder / name / "config.yml"
        text = config.read_text("utf-8").replace("engine: auto ", "engine: onnxruntime ")
        config.write_text(text.replace("batch_size: auto ", "batch_size: 8 "), "utf-8")
    script = folder / command_in(done.stdout, "python3").removeprefix("python3 ")
    with ServiceProcess(script, ports, name=name, folder=folder) as service:
        yield NewService(service, done.stdout, folder)


def command_in(printed: str, program: str) -> str:
    """The only command of this program among those that were printed."""
    (command,) = re.findall(rf"^  ({program} .*)$", printed, re.MULTILINE)
    return str(command)
