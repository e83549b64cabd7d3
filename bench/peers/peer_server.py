"""A peer's server, started in its own environment with a model, a batch size and a number of instances."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.load import CannotMeasure
from bench.peers.environments import environment
from bench.peers.ours import instances
from bench.peers.scenarios import Model
from bench.peers.server import Endpoint, Server, running
from bench.peers.subjects import Peer, Setting
from bench.running import ROOT, free_ports
from pipeline.process.environment import MODEL_PROCESS


class PeerServer(NamedTuple):
    server: Server
    endpoint: Endpoint


@contextlib.contextmanager
def peer_server(
    peer: Peer, setting: Setting, model: Model, texts: Sequence[str], python39: str
) -> Iterator[PeerServer]:
    """Start the server of a peer. Raises CannotMeasure if the peer can't be installed or does not answer."""
    venv, packages = Path(sys.prefix), {"PYTHONPATH": str(ROOT)}
    if peer.environment:
        venv, packages = environment(peer.environment, python39 if peer.python39 else None), {}
    (port,) = free_ports(1)
    program, *arguments = (part.format(port=port, instances=instances()) for part in peer.command)
    variables = {
        "PEER_MODEL": str(model.paddle if peer.python39 else model.directory),
        "PEER_INSTANCES": str(instances()),
        "PEER_BATCH": str(setting.batch),
        "PEER_WAIT_MS": str(setting.wait_ms),
        "PEER_LONGEST": str(max(map(len, texts)) + 2),  # tokens: a character is one at most
    }
    endpoint = Endpoint(port, peer.path, peer.dialect)
    command = [str(venv / "bin" / program), *arguments]
    env = activated(venv) | packages | peer.env | variables
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(running(command, endpoint, env, texts[0]))
        except CannotMeasure:  # try again: PyTriton's two processes sometimes fail to connect
            server = stack.enter_context(running(command, endpoint, env, texts[0]))
        yield PeerServer(server, endpoint)


def activated(venv: Path) -> dict[str, str]:
    """Return the variables of an activated environment, and the variables that our workers get."""
    libraries = os.pathsep.join(
        filter(None, [sysconfig.get_config_var("LIBDIR"), os.getenv("LD_LIBRARY_PATH")])
    )
    return {
        **MODEL_PROCESS, **os.environ, "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(venv),
        "LD_LIBRARY_PATH": libraries,  # Triton's Python backend loads libpython
    }  # fmt: skip
