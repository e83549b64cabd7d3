"""config.yml as far as the machine has to fulfil it: devices it asks for, ports it needs."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from pipeline.config import ServiceConfig, load_config
from pipeline.doctor.finding import Finding, miss, note, ok
from pipeline.errors import ConfigError

USUAL = Path("config.yml")
LISTENING = "0A"  # st of /proc/net/tcp
OUR_SERVER = "pipeline.server"
COMMAND_CHARS = 120


def check_config(given: Path | None) -> tuple[ServiceConfig | None, list[Finding]]:
    """The configuration, if it can be read, and what there is to say about it and its ports.

    One that was not given may be absent.
    """
    path = given or USUAL
    if given is None and not path.exists():
        remedy = "Start the doctor in the service's folder, or name the file with --config."
        return None, [note("Configuration", f"no {path} here; ports were not looked at", remedy)]
    try:
        config = load_config(path)
    except ConfigError as exc:
        return None, [
            miss("Configuration", exc.message, "Mend the keys named there; docs/config.md has all.")
        ]
    ports = {"http_port": config.http_port, "rpc_port": config.rpc_port}
    ports |= {f"v2.{name}": getattr(config.v2, name) for name in ("http_port", "grpc_port", "metrics_port")}
    findings = [check_port(name, port) for name, port in ports.items() if port is not None]
    return config, [ok("Configuration", str(path)), *findings]


def check_port(name: str, port: int) -> Finding:
    check = f"Port {port}"
    holders = list(listeners(port))
    if any(OUR_SERVER in command for _, command in holders):
        pid = next(pid for pid, command in holders if OUR_SERVER in command)
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


def listeners(port: int) -> Iterator[tuple[int, str]]:
    """(process, its command line) of what listens on the port, as far as this user may see."""
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for process in Path("/proc").iterdir() if wanted else ():
        if process.name.isdigit() and not wanted.isdisjoint(_open_files(process)):
            yield int(process.name), _command(process)


def _open_files(process: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):  # the process ended, or is another user's
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed in between
                yield str(descriptor.readlink())


def _command(process: Path) -> str:
    try:
        content = (process / "cmdline").read_bytes()
    except OSError:
        return "which has just ended"
    return content.replace(b"\0", b" ").decode("utf-8", "replace").strip()


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text("utf-8").splitlines()[1:]
        except OSError:  # no IPv6
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _try_port(port: int) -> None:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, for ports just closed
        trial.bind(("", port))
