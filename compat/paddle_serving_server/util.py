"""Helpers of Paddle Serving's command line, and the argument parser that service scripts import."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from paddle_serving_server.env import CONF_HOME

_PROCESS_FILE = "ProcessInfo.json"
_ALL_STOPPED = "All processes of PaddleServing has been stopped."
_SIGNALS = {"stop": signal.SIGINT, "kill": signal.SIGKILL}


def pid_is_exist(pid: int) -> bool:
    """Return whether the process exists and this user can signal it."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def kill_stop_process_by_pid(command: str, pid: int) -> None:
    """Send SIGINT ("stop") or SIGKILL ("kill") to a process group, or to the process alone."""
    if not pid_is_exist(pid):
        sys.stdout.write(f"Process [{pid}]  has been stopped.\n")
        return
    if (number := _SIGNALS.get(command)) is None:
        return
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        os.kill(pid, number)


def dump_pid_file(portList: Sequence[int], model: Any) -> None:
    """Add process group, ports and model of this process to ProcessInfo.json.

    Earlier entries with one of the ports are removed.
    """
    file = Path(CONF_HOME, _PROCESS_FILE)
    file.parent.mkdir(parents=True, exist_ok=True)
    entries = json.loads(file.read_text("utf-8")) if file.is_file() and file.stat().st_size else []
    entries = [entry for entry in entries if set(portList).isdisjoint(entry["port"])]
    entry = {"pid": os.getpgid(0), "port": list(portList), "model": str(model), "start_time": time.time()}
    file.write_text(json.dumps([*entries, entry]), "utf-8")


def load_pid_file(filepath: str) -> list[dict[str, Any]] | Literal[False]:
    """Return the entries of a ProcessInfo.json, which describe started services.

    If the file is empty, it is removed, and False is returned. Raises ValueError if the file is missing.
    """
    file = Path(filepath)
    if not file.exists():
        raise ValueError(f"{_PROCESS_FILE} file is not exists, {_ALL_STOPPED}")
    if file.stat().st_size:
        entries: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))
        return entries
    file.unlink()
    sys.stdout.write(f"{_PROCESS_FILE} file is empty, {_ALL_STOPPED}\n")
    return False


class ArgsParser(ArgumentParser):
    """Command-line parser of service scripts: `--config config.yml --opt op.det.concurrency=2`.

    The parsed namespace has the configuration, with the options merged in, as `conf_dict`.
    """

    def __init__(self) -> None:
        super().__init__(formatter_class=RawDescriptionHelpFormatter)
        self.add_argument("-c", "--config", help="configuration file to use")
        self.add_argument("-o", "--opt", nargs="+", help="set configuration options")

    def parse_args(self, argv: Sequence[str] | None = None) -> Namespace:  # type: ignore[override]
        """Parse the arguments and load the configuration. Raise AssertionError without `--config`."""
        args = super().parse_args(argv)
        if args.config is None:
            raise AssertionError("Please specify --config=configure_file_path.")
        args.conf_dict = self._parse_opt(args.opt, args.config)
        return args

    def _parse_helper(self, v: str) -> Any:
        if v.isnumeric():
            return int(v)
        return v == "True" if v in ("True", "False") else v

    def _parse_opt(self, opts: Sequence[str] | None, conf_path: str) -> Any:
        """Load the configuration file, and set the options KEY=VALUE in it. A value may not contain "="."""
        config = yaml.safe_load(Path(conf_path).read_text("utf-8"))
        for opt in opts or ():
            name, value = opt.strip().split("=")
            *sections, key = name.split(".")
            section = config
            for part in sections:
                section = section.setdefault(part, {})
            section[key] = self._parse_helper(value)
        return config
