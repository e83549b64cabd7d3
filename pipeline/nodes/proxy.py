"""The proxy of a worker on another node: it takes the place of the worker process beside the front.

To the front it is a worker: it has the sockets, the shared memory and the exit status of one. It forwards
each frame to the agent on the node, which starts the worker. The front batches, retries and replaces as with
workers of its own machine. When the connection is lost, the proxy ends, and the front runs the requests
elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import ssl
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from pipeline.api.app import App
from pipeline.config.nodes_section import NodesConfig, read_token
from pipeline.errors import ServingError
from pipeline.messages.frames import (
    NODE_LOST,
    OTHER_VERSION,
    PACKAGE_CHANGED,
    PROTOCOL_VERSION,
    Arena,
    frame,
)
from pipeline.messages.messages import DispatchMessage, Failed, Start
from pipeline.nodes.link import (
    COUNTS,
    COUNTS_EVERY_S,
    STATUS,
    AgentRefused,
    Link,
    LinkLost,
    PacketKind,
    Place,
    WorkerRequest,
    cancel_tasks,
    offer_worker,
    open_link,
)
from pipeline.nodes.local_frames import LocalSocket
from pipeline.process.log import lines_written, set_up_logging
from pipeline.process.processes import Activity, die_with, name_process

log = logging.getLogger(__name__)

RETRY_S = 0.5  # between two rounds of tries at all agents
_decode_start = msgspec.msgpack.Decoder(Start).decode


class _DispatchId(msgspec.Struct, array_like=True):
    """The first field of a `DispatchMessage`. The decoder skips the other fields."""

    id: int


_decode_id = msgspec.msgpack.Decoder(_DispatchId).decode


class Proxy:
    """Stands in for a worker on another machine: forwards messages between the front process and the agent.

    The agent is a server on the other machine, which runs the worker.
    """

    def __init__(self, sockets: Sequence[LocalSocket], link: Link) -> None:
        self._sockets = sockets
        self._link = link
        self._sent = [-1] * len(sockets)  # the latest dispatch that each instance was sent

    async def run(self) -> int:
        """Forward messages until the worker has ended, and return its exit status. Raises LinkLost."""
        receiving = asyncio.create_task(self._forward_replies())
        tasks = [
            receiving,
            asyncio.create_task(self._link.await_silence()),
            asyncio.create_task(self._recall()),
        ]
        tasks += [asyncio.create_task(self._forward_requests(n)) for n in range(len(self._sockets))]
        try:
            while True:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if receiving in done:
                    return receiving.result()
                for task in done:
                    task.result()
                    tasks.remove(task)
        except LinkLost:
            self._mark_begun()
            raise
        finally:
            await cancel_tasks(tasks)

    async def _forward_requests(self, index: int) -> None:
        """Forward the front process's messages of an instance to the agent, until the front shuts the socket.

        A lost connection is ignored here: `_forward_replies` may still read the worker's exit status.
        """
        local = self._sockets[index]
        with contextlib.suppress(LinkLost):
            while (received := await local.receive_frame()) is not None:
                if received.kind == DispatchMessage.kind:
                    self._sent[index] = _decode_id(received.message).id
                await self._link.send(PacketKind.FRAME, received.pack(), index)
            await self._link.send(PacketKind.END, instance=index)

    async def _forward_replies(self) -> int:
        """Forward messages and counts of the agent to the front process. Return the worker's exit status."""
        while True:
            packet = await self._link.receive_packet()
            if packet.kind == PacketKind.ENDED:
                (status,) = STATUS.unpack(packet.data)
                return int(status)
            if packet.instance >= len(self._sockets):
                raise LinkLost(f"{self._link.peer_address} sent a packet for instance {packet.instance}")
            local = self._sockets[packet.instance]
            if packet.kind == PacketKind.FRAME:
                await local.write(packet.data)
            elif packet.kind == PacketKind.COUNTS:
                arena = local.arena
                arena.begun_count, cpu_s, state, arena.resident_bytes = COUNTS.unpack(packet.data)
                arena.activity = Activity(state.decode("ascii"), cpu_s)

    async def _recall(self) -> None:
        """Regularly tell the agent which requests the front process has taken back. Runs until cancelled."""
        sent = [local.arena.taken_back_count for local in self._sockets]
        while True:
            await asyncio.sleep(COUNTS_EVERY_S)
            for index, local in enumerate(self._sockets):
                count = local.arena.taken_back_count
                if count != sent[index]:
                    sent[index] = count
                    self._link.write(PacketKind.COUNTS, COUNTS.pack(count, 0.0, b"\0", 0), index)

    def _mark_begun(self) -> None:
        """Mark all dispatches that were sent as begun.

        After the connection is lost, nobody knows which of them the worker has begun.
        """
        for local, dispatch_id in zip(self._sockets, self._sent, strict=True):
            if dispatch_id >= 0:
                local.arena.note_begin(dispatch_id)


class ReasonLog:
    """Logs why a worker waits for a machine, once for each reason."""

    def __init__(self, worker: str, start_timeout_s: float) -> None:
        self._worker = worker
        self._start_timeout_s = start_timeout_s
        self._logged = ""

    def log(self, reason: str) -> None:
        if reason != self._logged:
            log.warning(
                "Worker %s waits for a node, for %g s at most (start_timeout): %s",
                self._worker, self._start_timeout_s, reason,
            )  # fmt: skip
            self._logged = reason


async def find_agent(
    nodes: NodesConfig, start: Start, instances: int, log_reason: Callable[[str], None]
) -> tuple[Link, str]:
    """Return the connection to an agent that starts the worker, and the address of the agent.

    Workers try different agents first, by the number of their first instance. Tries continue as long as an
    agent may accept later. The front process ends a proxy that takes longer than `start_timeout`. Raises
    AgentRefused if every agent has finally refused, and ConfigError for a token file that can't be read.
    """
    token = read_token(Path(nodes.token_file))
    context = None if nodes.ca_file is None else ssl.create_default_context(cafile=nodes.ca_file)
    request = WorkerRequest(token, start.name, start.op, instances, nodes.timeout)
    first = start.first_instance // instances % len(nodes.agents)
    agents = [*nodes.agents[first:], *nodes.agents[:first]]
    while True:
        reasons, is_final = [], True
        for address in agents:
            try:
                return await _ask_agent(address, context, request, log_reason)
            except AgentRefused as exc:
                reasons.append(exc.message)
                is_final = is_final and exc.is_final
            except (LinkLost, OSError) as exc:  # TimeoutError is an OSError
                reasons.append(f"{address}: {getattr(exc, 'message', exc) or 'no answer'}")
                is_final = False
        reason = "; ".join(reasons)
        if is_final:
            raise AgentRefused(reason)
        log_reason(reason)
        await asyncio.sleep(RETRY_S)


async def _ask_agent(
    address: str, context: ssl.SSLContext | None, request: WorkerRequest, log_reason: Callable[[str], None]
) -> tuple[Link, str]:
    """Return the connection to the agent at an address, or to an agent that a placer there has started."""
    link = await open_link(address, context)
    try:
        place = await offer_worker(link, request, log_reason)
        if place is None:
            return link, address
        placed, _ = await _ask_placed_agent(place, request, log_reason)
        placed.keep_open(link)
        return placed, place.address
    except BaseException:
        link.abort()
        raise


async def _ask_placed_agent(
    place: Place, request: WorkerRequest, log_reason: Callable[[str], None]
) -> tuple[Link, str]:
    """Request a worker from an agent that a placer has started.

    No failure is final, because the next try is on another machine.
    """
    context = ssl.create_default_context(cafile=place.ca_file) if place.ca_file else None
    try:
        return await _ask_agent(place.address, context, request, log_reason)
    except AgentRefused as exc:
        exc.is_final = False
        raise
    except OSError as exc:  # also for a certificate that does not fit
        raise LinkLost(f"the agent {place.address}: {exc}") from exc


async def run_proxy(fds: Sequence[int], log_fd: int) -> int:
    """Run a worker on another machine for the front process, and return the worker's exit status."""
    pairs = zip(fds[::2], fds[1::2], strict=True)
    sockets = [LocalSocket(socket_fd, Arena(arena_fd)) for socket_fd, arena_fd in pairs]
    for local in sockets:
        await local.start_reading()
    first = await sockets[0].receive_frame()
    if first is None:
        return 0
    start = _decode_start(first.message)
    name_process(start.name)
    app = App.from_json(start.app)
    set_up_logging(app.config.logging, app.name, start.name, beside_app=True, log_fd=log_fd)
    assert app.config.nodes is not None
    try:
        reasons = ReasonLog(start.name, app.config.op[start.op].start_timeout)
        link, address = await find_agent(app.config.nodes, start, len(sockets), reasons.log)
    except ServingError as exc:
        await sockets[0].write(b"".join(frame(Failed(exc.message, final=True))))
        return 1
    log.info("Worker %s runs on the node of %s", start.name, address)
    try:
        await link.send(PacketKind.FRAME, first.pack())
        return await Proxy(sockets, link).run()
    except LinkLost as exc:
        log.error("Worker %s: %s", start.name, exc.message)
        return NODE_LOST


def main(arguments: list[str]) -> NoReturn:
    """Run a proxy, the stand-in of a worker on another machine.

    The front process starts the proxy with the arguments of a worker, see `pipeline.worker.main`.
    """
    if arguments[0] != PROTOCOL_VERSION:
        sys.stderr.write(f"{PACKAGE_CHANGED}\n")
        sys.exit(OTHER_VERSION)
    front_pid = int(arguments[1])
    log_fd, _lifeline_fd, *fds = map(int, arguments[3:])  # the lifeline closes when this process ends
    die_with(front_pid)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # signals are for the front
        signal.signal(number, signal.SIG_IGN)
    status = asyncio.run(run_proxy(fds, log_fd))
    lines_written()
    if status < 0:  # a signal ended the worker: end alike, so that the front reports the same cause
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 1)
