"""The Ray actor that runs `paddlewheel agent` for one worker on a node of a Ray cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import ray

from pipeline.process.processes import python_module

READY_LINE = "Agent is ready at "


class StartedAgent(NamedTuple):
    """The address of an agent, or the reason why there is none."""

    address: str
    error: str = ""


class NodeAgent:
    """Runs an agent for one worker, as a child process that dies with the actor."""

    def start(self, token: str, folder: str) -> StartedAgent:
        """Start the agent, and return its address. folder: its working folder."""
        host = ray.util.get_node_ip_address()
        if not Path(folder).is_dir():
            return StartedAgent("", f"node {host} has no folder {folder}; copy the service there")
        command = python_module("pipeline", parent=os.getpid())
        command += ["agent", "--address", f"{host}:0", "--token-file", "/dev/stdin", "--max-workers", "1"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, text=True, errors="replace"
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(token)
        self._process.stdin.close()
        for line in self._process.stdout:
            _, is_ready, address = line.partition(READY_LINE)
            if is_ready:
                threading.Thread(target=self._forward_output, daemon=True).start()
                return StartedAgent(address.strip())
        return StartedAgent("", f"the agent on node {host} ended with {self._process.wait()}")

    def _forward_output(self) -> None:
        """Write the lines of the agent and its worker to the actor's output, which Ray collects."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
