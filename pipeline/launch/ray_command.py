"""`paddlewheel ray up`: runs a service whose workers Ray places on the nodes of its cluster."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pipeline.api import service
from pipeline.errors import ConfigError
from pipeline.launch.command_options import RayUpOptions
from pipeline.launch.run_script import run_script
from pipeline.process.processes import python_module


def ray_up(options: RayUpOptions) -> None:
    """Run a service script whose workers are on the nodes of a Ray cluster.

    Does not return: the front takes over this process. Raises ConfigError without Ray, and without a cluster
    at the address.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("Ray is not installed here; install it with: pip install 'paddlewheel[ray]'")
    resources = parse_resources(options.resources)
    folder = Path(tempfile.mkdtemp(prefix="paddlewheel-ray-"))
    token_file = folder / "token"
    token_file.write_text(secrets.token_hex(32), "ascii")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        settings = {
            "front_pid": os.getpid(),
            "ray_address": options.address,
            "socket_fd": listening.fileno(),
            "token_file": str(token_file),
            "folder": str(options.service.resolve() if options.service.is_dir() else Path.cwd()),
            "resources": resources,
        }
        if error := start_placer(settings, listening):
            shutil.rmtree(folder, ignore_errors=True)
            raise ConfigError(error)
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    service.replaced_sections = {"nodes": {"agents": [address], "token_file": str(token_file)}}
    run_script(options.service, config=options.config)


def start_placer(settings: dict[str, object], listening: socket.socket) -> str:
    """Start the placer of this process. Return an error message if the Ray cluster can't be used."""
    reading_fd, writing_fd = os.pipe()
    encoded = json.dumps({**settings, "ready_fd": writing_fd})
    supervisor = subprocess.Popen(
        [*python_module("pipeline.nodes.on_ray"), encoded],
        pass_fds=(listening.fileno(), writing_fd), stdin=subprocess.DEVNULL, process_group=0,
    )  # fmt: skip
    os.close(writing_fd)
    with os.fdopen(reading_fd, encoding="utf-8") as lines:
        line = lines.readline()
    error = line.strip() if line else "the placer of the Ray cluster has ended; its output has the reason"
    if error:
        supervisor.terminate()
        supervisor.wait()
    return error


def parse_resources(values: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the Ray resources of a worker by Op, from values such as "ocr=CPU:2,GPU:1".

    Raises ConfigError.
    """
    resources = {}
    for value in values:
        op, _, listed = value.partition("=")
        try:
            pairs = [part.split(":") for part in listed.split(",")]
            resources[op] = {name.strip(): float(count) for name, count in pairs}
        except ValueError:
            resources[op] = {}
        if not op or not resources[op] or not all(0 < count < 1e6 for count in resources[op].values()):
            raise ConfigError(f"--resources {value}: expected OP=NAME:COUNT,..., e.g. ocr=CPU:2,GPU:1")
    return resources
