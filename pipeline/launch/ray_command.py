"""`paddlewheel ray up`: runs a service whose workers Ray places on the nodes of its cluster."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

from client.options import parse_options
from pipeline.api import service
from pipeline.api.app import App
from pipeline.errors import ConfigError
from pipeline.launch.command_options import RayUpOptions
from pipeline.launch.commands import OneLineParser
from pipeline.launch.run_script import run_script
from pipeline.launch.serve_options import ServeOptions, add_flags, parse_flags
from pipeline.offline.script_service import SCRIPT
from pipeline.process.processes import python_module


def ray_up(options: RayUpOptions) -> None:
    """Run a service script or a model repository, with its workers on the nodes of a Ray cluster.

    Does not return: this process becomes the front process. Raises ConfigError without Ray, for wrong
    options, and without a cluster at the address.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("Ray is not installed here; install it with: pip install 'paddlewheel[ray]'")
    resources = parse_resources(options.resources)
    is_repository = options.service.is_dir() and not (options.service / SCRIPT).is_file()
    if options.flag and not is_repository:
        raise ConfigError(f"--flag is for a model repository, and {options.service} is none")
    if options.config and is_repository:
        raise ConfigError(f"--config is for a script, and {options.service} has no {SCRIPT}; use --flag")
    serve_options = parse_serve_flags(options.service.resolve(), options.flag) if is_repository else None
    tls_files = check_tls_files(options)
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
            **tls_files,
        }
        if error := start_placer(settings, listening):
            shutil.rmtree(folder, ignore_errors=True)
            raise ConfigError(error)
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    service.replaced_sections = {"nodes": {"agents": [address], "token_file": str(token_file)}}
    service.check_app = partial(check_resources, resources)
    if serve_options is not None:
        _serve_repository(options.service, serve_options)
    run_script(options.service, config=options.config)


def parse_serve_flags(repository: Path, flags: Sequence[str]) -> ServeOptions:
    """Return the options of `paddlewheel serve` for a repository. A wrong flag ends the process."""
    parser = OneLineParser(prog="paddlewheel ray up --flag")
    add_flags(parser)
    arguments = [f"--model-repository={repository}", *(f"--{flag}" for flag in flags)]
    return parse_options(ServeOptions, parse_flags(parser, arguments))


def _serve_repository(repository: Path, options: ServeOptions) -> None:
    """Serve a model repository.

    Its folder becomes the working folder of the front process and the workers.
    """
    from pipeline.launch.serve_command import serve_repository

    os.chdir(repository)
    serve_repository(options)


def check_tls_files(options: RayUpOptions) -> dict[str, str]:
    """Check the TLS options, and return the files' paths as settings for `start_placer`.

    Empty without TLS. Raises ConfigError.
    """
    files = {"cert_file": options.cert, "key_file": options.key, "ca_file": options.ca}
    if not any(files.values()):
        return {}
    if not all(files.values()):
        raise ConfigError("--cert, --key and --ca belong together; name all or none")
    try:
        ssl.create_default_context(cafile=options.ca)
    except OSError as exc:  # ssl.SSLError is one
        raise ConfigError(f"--ca {options.ca} can't be used ({exc.strerror or exc})") from exc
    return {name: str(path.absolute()) for name, path in files.items() if path is not None}


def check_resources(resources: Collection[str], app: App) -> None:
    """Raise ConfigError if `--resources` names an Op or model that the service does not have.

    Nothing is checked if models can be loaded later.
    """
    if app.repository is not None and (app.config.v2.model_control == "explicit" or app.repository.poll_s):
        return
    ops = [*app.ops, *app.joint_ops]
    names = sorted({op.rpartition(":")[0] or op for op in ops})
    for op in resources:
        if op not in names and op not in ops:
            raise ConfigError(f"--resources {op}=...: there is no such Op or model, only {', '.join(names)}")


def start_placer(settings: dict[str, object], listening: socket.socket) -> str:
    """Start the placer, a process that starts workers on a Ray cluster.

    Return an error message if the cluster can't be used.
    """
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
    """Return the Ray resources of a worker by Op (step), from options such as "ocr=CPU:2,GPU:1".

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
