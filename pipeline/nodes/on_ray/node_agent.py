"""The Ray actor that runs `paddlewheel agent` for one worker on a node of a Ray cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import ray

from pipeline.process.processes import python_module

READY_LINE = "Agent is ready at "
UNUSED_S = 60  # after which an actor ends if nobody starts its agent: its placer has died
IDLE_S = 30  # after which an agent ends without a connection of a proxy


class StartedAgent(NamedTuple):
    """Result of starting an agent: its address, or the reason why it did not start."""

    address: str
    error: str = ""


class NodeAgent:
    """A Ray actor that runs an agent for one worker, as a child process that dies with the actor.

    The actor outlives the placer that has created it, and ends with the agent.
    """

    def __init__(self) -> None:
        self._unused = threading.Timer(UNUSED_S, os._exit, (1,))
        self._unused.daemon = True
        self._unused.start()

    def start(self, token: str, folder: str, options: Sequence[str] = ()) -> StartedAgent:
        """Start the agent, and return its address.

        folder: the agent's working folder. options: of the agent's command line.
        """
        self._unused.cancel()
        host = ray.util.get_node_ip_address()
        if not Path(folder).is_dir():
            return StartedAgent("", f"node {host} has no folder {folder}; copy the service there")
        command = python_module("pipeline", parent=os.getpid())
        command += ["agent", "--address", f"{host}:0", "--token-file", "/dev/stdin", "--max-workers", "1"]
        command += ["--idle-timeout", str(IDLE_S), *options]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            text=True,
            errors="replace",
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(token)
        self._process.stdin.close()
        line = ""
        for line in self._process.stdout:
            _, is_ready, address = line.partition(READY_LINE)
            if is_ready:
                threading.Thread(target=self._forward_output, daemon=True).start()
                return StartedAgent(address.strip())
        return StartedAgent("", f"the agent on node {host} ended with {self._process.wait()}: {line.strip()}")

    def _forward_output(self) -> None:
        """Copy the agent's output to the actor's output, which Ray collects.

        Ends the actor when the agent ends.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
        os._exit(0)
