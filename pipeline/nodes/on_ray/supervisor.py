"""Restarts the placer of a front: a placer dies with the head node of its Ray cluster."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.process.processes import python_module

RESTART_S = 2.0
END_S = 10.0  # for a placer to leave its cluster


@dataclass(frozen=True)
class PlacerSettings:
    """Settings of a placer, written by `paddlewheel ray up`."""

    front_pid: int
    ray_address: str  # of the cluster; "auto": the cluster of this machine
    socket_fd: int  # listens for proxies
    ready_fd: int  # gets an error message, or an empty line when the placer is ready
    token_file: str  # the only file of its folder
    folder: str  # working folder of the agents
    resources: Mapping[str, Mapping[str, float]]  # by Op, or by model for all versions of the model
    cert_file: str = ""  # of the agents, on the nodes; empty: no encryption
    key_file: str = ""
    ca_file: str = ""  # authorities of that certificate, on the front's machine


def supervise(settings: PlacerSettings, encoded: str) -> None:
    """Run a placer, and restart it until the front process ends. Then remove the token file.

    encoded: the settings as JSON.
    """
    try:
        front = os.pidfd_open(settings.front_pid)
        while _run_placer(settings, encoded, front):
            time.sleep(RESTART_S)
    finally:
        shutil.rmtree(Path(settings.token_file).parent, ignore_errors=True)


def _run_placer(settings: PlacerSettings, encoded: str, front: int) -> bool:
    """Run a placer until it ends. Return False when the front process has ended."""
    command = [*python_module("pipeline.nodes.on_ray", parent=os.getpid()), encoded, "once"]
    fds = (settings.socket_fd, settings.ready_fd)
    placer = subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL)
    placer_end = os.pidfd_open(placer.pid)
    ended, _, _ = select.select([front, placer_end], [], [])
    os.close(placer_end)
    if front not in ended:
        placer.wait()
        return True
    placer.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        placer.wait(END_S)
    return False
