"""config.yml as far as the machine has to fulfil it: ports it needs, libraries that its models need."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import ConfigError
from pipeline.launch.doctor.finding import Finding, miss, note, ok
from pipeline.process.processes import SERVER, listeners, runs_module

if TYPE_CHECKING:
    from pipeline.config.config_file import ServiceConfig

USUAL = Path("config.yml")
COMMAND_CHARS = 120


def check_config(given: Path | None) -> tuple[ServiceConfig | None, list[Finding]]:
    """The configuration, if it can be read, and what there is to say about it, its ports and its models.

    One that was not given may be absent.
    """
    path = given or USUAL
    if given is None and not path.exists():
        remedy = "Start the doctor in the service's folder, or name the file with --config."
        return None, [note("Configuration", f"no {path} here; ports were not looked at", remedy)]
    try:
        from pipeline.config.config_file import (
            load_config,  # here: the doctor also runs where pydantic is missing
        )
    except ImportError as exc:
        remedy = "Mend the packages named under Imports first."
        return None, [miss("Configuration", f"{path} was not read: {exc}", remedy)]
    try:
        config = load_config(path)
    except ConfigError as exc:
        return None, [
            miss("Configuration", exc.message, "Mend the keys named there; docs/config.md has all.")
        ]
    findings = [check_port(name, port) for name, port in config.ports().items()]
    return config, [ok("Configuration", str(path)), *findings, *_missing_libraries(config, path)]


def _missing_libraries(config: ServiceConfig, path: Path) -> list[Finding]:
    """A miss for each Op whose model needs a library that is not installed. Other flaws the start tells."""
    try:
        from pipeline.config.value_types import AUTO
        from pipeline.models.serving_model import choose_version
        from pipeline.models.variants import load_for_engine
        from pipeline.tuning.auto import require_engine
    except ImportError:  # told under Imports
        return []
    findings = []
    for name, op in config.op.items():
        conf = op.local_service_conf
        if conf is None or not conf.model_dir:
            continue
        folder = Path(conf.model_dir) if Path(conf.model_dir).exists() else path.parent / conf.model_dir
        try:
            directory = choose_version(folder, conf.model_version).directory
            model = load_for_engine(directory, None if conf.engine == AUTO else conf.engine)
        except ConfigError:
            continue
        try:
            require_engine(model, conf.engine)
        except ConfigError as exc:
            remedy = "Install it, or serve an ONNX model."
            findings.append(miss(f"Model of {name}", exc.message, remedy))
    return findings


def check_port(name: str, port: int) -> Finding:
    check = f"Port {port}"
    holders = list(listeners(port))
    for pid in (pid for pid, _ in holders if runs_module(pid, SERVER)):
        return note(check, f"{name}: a service of this project listens there (process {pid})")
    if holders:
        pid, command = holders[0]
        return miss(
            check,
            f"{name}: used by process {pid}, {command[:COMMAND_CHARS]}",
            f"Stop it, or set another {name}.",
        )
    try:
        _try_port(port)
    except OSError as exc:
        remedy = f"Find its owner as root with `ss -ltnp`, or set another {name}."
        return miss(check, f"{name}: can't be opened ({exc.strerror}), owner unknown", remedy)
    return ok(check, f"{name}: free")


def _try_port(port: int) -> None:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, for ports just closed
        trial.bind(("", port))
