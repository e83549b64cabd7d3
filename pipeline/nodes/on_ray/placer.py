"""The placer of `paddlewheel ray up`: has Ray start an agent on a node of its cluster for each worker.

A proxy beside the front asks the placer as it would ask an agent. The placer creates a Ray actor with the
resources of the worker's Op, and answers with the address of the agent that the actor has started. The actor
ends with the proxy's connection to the placer or to the agent, and outlives a placer that is killed. A proxy
whose node is lost ends, and the next proxy gets another actor. Requests go from proxy to agent, not through
Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import ray
from ray.exceptions import RayError

from pipeline.config.config_file import LoggingConfig
from pipeline.config.nodes_section import read_token
from pipeline.errors import ServingError
from pipeline.nodes.link import (
    Link,
    LinkLost,
    Offer,
    PacketKind,
    Place,
    cancel_tasks,
    create_server_protocol,
    move,
    read_offer,
    refuse,
)
from pipeline.nodes.on_ray.node_agent import NodeAgent, StartedAgent
from pipeline.nodes.on_ray.supervisor import PlacerSettings
from pipeline.process.log import lines_written, set_up_logging

log = logging.getLogger(__name__)

WAITING_EVERY_S = 3.0  # while there is no agent; below the time limit of a handshake
CONNECT_S = 10.0  # for the head node of the cluster to accept a connection
NAMESPACE = "paddlewheel"
DEFAULT_RESOURCES = {"CPU": 1.0}


class Placer:
    """Creates a Ray actor, which runs an agent, for each connection of a proxy."""

    def __init__(self, settings: PlacerSettings) -> None:
        self._settings = settings
        self._token = read_token(Path(settings.token_file))
        self._links: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Serve proxies of this machine until SIGTERM, then kill the actors."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        listening = socket.socket(fileno=os.dup(self._settings.socket_fd))
        server = await loop.create_server(lambda: create_server_protocol(self._accept), sock=listening)
        log.info("Placer is ready: Ray cluster %s", self._settings.ray_address)
        await stop.wait()
        server.close()
        await cancel_tasks([*self._links])

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve_link(Link(reader, writer)))
        self._links.add(task)
        task.add_done_callback(self._links.discard)

    async def _serve_link(self, link: Link) -> None:
        try:
            offer = await read_offer(link, self._token)
            await self._place(link, offer)
        except (ServingError, OSError) as exc:
            log.warning("Connection of a proxy: %s", getattr(exc, "message", exc))
        except Exception:
            log.exception("Connection of a proxy failed")
        finally:
            link.abort()

    async def _place(self, link: Link, offer: Offer) -> None:
        """Create the Ray actor for a worker, and keep the actor until the worker's proxy disconnects."""
        resources = find_resources(self._settings.resources, offer.op)
        remote_class: Any = ray.remote(NodeAgent)
        options = remote_class.options(
            max_restarts=0, lifetime="detached", scheduling_strategy="SPREAD", **split_resources(resources)
        )
        try:
            actor = options.remote()  # in one step with the `try` below, which kills the actor
        except Exception as exc:  # Ray raises RayError, RpcError and more
            self._leave_cluster(exc)
        starting = asyncio.ensure_future(self._start_agent(actor))
        closed = asyncio.ensure_future(_await_end(link))
        try:
            while not starting.done() and not closed.done():
                await asyncio.wait(
                    {starting, closed}, timeout=WAITING_EVERY_S, return_when=asyncio.FIRST_COMPLETED
                )
                if not starting.done() and not closed.done():
                    await link.send(PacketKind.WAITING, (await describe_wait(offer.op, resources)).encode())
            if not closed.done():
                await self._answer(link, offer, starting.result())
                await closed
        finally:
            starting.cancel()
            closed.cancel()
            with contextlib.suppress(Exception):  # the cluster may be gone
                ray.kill(actor)

    def _leave_cluster(self, error: Exception) -> NoReturn:
        """End the process, so that its supervisor starts a placer that connects to the cluster anew.

        Ray takes a head node that has started again for another cluster, which refuses the former placers.
        """
        log.error("The Ray cluster can't be used any more: %s", " ".join(str(error).split()))
        lines_written()
        os._exit(1)  # an orderly end would wait for the former cluster

    async def _start_agent(self, actor: Any) -> StartedAgent:
        """Wait until Ray has created the actor, and start its agent."""
        settings = self._settings
        options = ["--cert", settings.cert_file, "--key", settings.key_file] if settings.cert_file else []
        try:
            agent: StartedAgent = await actor.start.remote(self._token.decode(), settings.folder, options)
        except RayError as exc:  # e.g. the node was lost
            return StartedAgent("", f"Ray: {' '.join(str(exc).split())}")
        return agent

    async def _answer(self, link: Link, offer: Offer, agent: StartedAgent) -> None:
        if agent.error:
            raise await refuse(link, agent.error, is_final=False)
        log.info("Worker %s is placed at %s", offer.name, agent.address)
        await move(link, self._token, offer, Place(agent.address, self._settings.ca_file))


async def _await_end(link: Link) -> None:
    """Wait until the proxy, which represents the worker on the service's machine, closes the connection."""
    with contextlib.suppress(LinkLost):
        while True:
            await link.receive_packet()


def find_resources(by_op: Mapping[str, Mapping[str, float]], op: str) -> Mapping[str, float]:
    """Return the Ray resources of an Op (step).

    An Op of a model repository is named MODEL:VERSION; resources of MODEL apply to all its versions.
    """
    model, _, _ = op.rpartition(":")
    return by_op.get(op) or by_op.get(model) or DEFAULT_RESOURCES


def split_resources(resources: Mapping[str, float]) -> dict[str, Any]:
    """Return the options of a Ray actor that needs these resources."""
    custom = {name: count for name, count in resources.items() if name not in ("CPU", "GPU")}
    return {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0), "resources": custom}


async def describe_wait(op: str, resources: Mapping[str, float]) -> str:
    """Return the reason why a worker has no agent yet: the resources for its Op that are not free."""
    nodes, free = await asyncio.gather(
        asyncio.to_thread(ray.nodes), asyncio.to_thread(ray.available_resources)
    )
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    fits = any(all(node.get(name, 0) >= count for name, count in resources.items()) for node in alive)
    state = (
        f"free in the cluster: {describe_resources(free)}" if fits else "no node of the cluster has as much"
    )
    return f"Op {op} needs {describe_resources(resources)}; {state}"


def describe_resources(resources: Mapping[str, float]) -> str:
    """Describe Ray resources in words, without memory and node names."""
    named = sorted(
        (name, count)
        for name, count in resources.items()
        if "memory" not in name and not name.startswith("node:")
    )
    return ", ".join(f"{count:g} {name}" for name, count in named) or "none"


def run_placer(settings: PlacerSettings) -> None:
    """Run a placer, which starts workers on a Ray cluster, until SIGTERM.

    Exits with 1 if the cluster can't be used.
    """
    set_up_logging(LoggingConfig(), "ray", "placer", beside_app=False)
    try:
        check_address(settings.ray_address)
        ray.init(address=settings.ray_address, namespace=NAMESPACE, configure_logging=False)
    except Exception as exc:  # Ray raises ConnectionError, RuntimeError and more
        error = f"the Ray cluster at {settings.ray_address} can't be used: {' '.join(str(exc).split())}"
        log.error("%s", error)
        report_state(settings, error)
        sys.exit(1)
    report_state(settings, "")
    asyncio.run(Placer(settings).serve())


def check_address(address: str) -> None:
    """Connect to the Ray head node once, because Ray itself retries for minutes.

    Raises OSError if no process listens there.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.removeprefix("ray://").strip("[]"), int(port)), CONNECT_S).close()


def report_state(settings: PlacerSettings, error: str) -> None:
    """Tell `paddlewheel ray up` that the placer is ready, or why the cluster can't be used."""
    with contextlib.suppress(OSError):  # only the first placer is waited for
        os.write(settings.ready_fd, f"{error}\n".encode())
