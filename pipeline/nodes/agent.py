"""`paddlewheel agent`: starts workers on this machine for the fronts of other machines.

Each connection is one worker process. The agent has the worker's sockets and shared memory, and forwards
frames to the proxy beside the front. A worker ends with its connection, and all workers end with the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipeline.config.nodes_section import read_token, split_address
from pipeline.errors import ConfigError, ServingError, StartFailed
from pipeline.messages.frames import PLAIN, PROTOCOL_VERSION, Arena, create_arena_fd
from pipeline.messages.messages import DispatchMessage
from pipeline.nodes.link import (
    COUNTS,
    COUNTS_EVERY_S,
    STATUS,
    Link,
    LinkLost,
    Offer,
    PacketKind,
    accept,
    cancel_tasks,
    create_server_protocol,
    read_offer,
    refuse,
)
from pipeline.nodes.local_frames import LocalSocket, WholeFrame
from pipeline.process.environment import MODEL_PROCESS
from pipeline.process.isolation import run_isolated
from pipeline.process.processes import WORKER, kill_groups, python_module, read_activity, resident_bytes

log = logging.getLogger(__name__)

MAX_INSTANCES = 255
MAX_HANDSHAKES = 64  # connections that are not authenticated yet
LAST_FRAMES_S = 5.0  # for the last replies of a worker that has ended, and for the proxy to read them
IDLE_CHECK_S = 0.5
STOP_S = 30.0  # for the dispatches of all workers when the agent stops
_decode_dispatch = msgspec.msgpack.Decoder(DispatchMessage).decode
_encode = msgspec.msgpack.Encoder().encode


class RemoteWorker:
    """A worker process on this machine, connected to its proxy on the service's machine by a link."""

    def __init__(self, link: Link, offer: Offer) -> None:
        self.name = offer.name
        self._link = link
        self._count = offer.instances
        self._clock_offset_s = time.monotonic() - offer.now  # of this machine, against the front's
        self._sockets: list[LocalSocket] = []

    async def start(self) -> None:
        """Start the worker process. Raises OSError if the system lacks resources."""
        with contextlib.ExitStack() as until_spawned:
            worker_lifeline, self._lifeline = socket.socketpair()
            until_spawned.enter_context(worker_lifeline)
            log_fd = os.dup(1)
            until_spawned.callback(os.close, log_fd)
            fds = [log_fd, worker_lifeline.fileno()]
            for _ in range(self._count):
                fds += self._create_instance(until_spawned)
            self._process = await asyncio.create_subprocess_exec(
                *python_module(WORKER), PROTOCOL_VERSION, str(os.getpid()), PLAIN, *map(str, fds),
                pass_fds=fds, stdin=subprocess.DEVNULL, env={**MODEL_PROCESS, **os.environ}, process_group=0,
            )  # fmt: skip
        for local in self._sockets:
            await local.start_reading()

    def _create_instance(self, until_spawned: contextlib.ExitStack) -> tuple[int, int]:
        """Create the socket pair and the shared memory of an instance.

        Return the two descriptors for the worker.
        """
        arena_fd = create_arena_fd()
        until_spawned.callback(os.close, arena_fd)
        front_end, worker_end = socket.socketpair()
        until_spawned.enter_context(worker_end)
        self._sockets.append(LocalSocket(front_end.detach(), Arena(arena_fd)))
        return worker_end.fileno(), arena_fd

    @property
    def pid(self) -> int:
        return self._process.pid

    async def run(self) -> None:
        """Forward messages until the worker has ended, and report its exit status. Raises LinkLost."""
        ended = asyncio.create_task(self._process.wait())
        forwarding = [asyncio.create_task(self._forward_replies(n)) for n in range(self._count)]
        receiving = [
            asyncio.create_task(each)
            for each in (self._forward_requests(), self._link.await_silence(), self._report_counts())
        ]
        try:
            while not ended.done():
                done, _ = await asyncio.wait({ended, *receiving}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            await asyncio.wait(forwarding, timeout=LAST_FRAMES_S)
            await self._report_end(ended.result())
        finally:
            await cancel_tasks([ended, *forwarding, *receiving])

    def stop(self) -> None:
        """Make the worker end after the dispatches (groups of requests) that it already has."""
        for local in self._sockets:
            local.shut_down()

    async def end(self) -> None:
        """Kill the worker and all processes that it has started, and release its memory."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        run_isolated(kill_groups, [self.pid])
        await self._process.wait()
        self._lifeline.close()
        for local in self._sockets:
            local.close()
            local.arena.close()

    async def _forward_requests(self) -> None:
        """Forward messages and recalls from the front process to the worker, until the connection is lost."""
        while True:
            packet = await self._link.receive_packet()
            if packet.instance >= self._count:
                raise LinkLost(f"{self._link.peer_address} sent a packet for instance {packet.instance}")
            local = self._sockets[packet.instance]
            if packet.kind == PacketKind.FRAME:
                await local.write(shift_deadlines(packet.data, self._clock_offset_s))
            elif packet.kind == PacketKind.END:
                local.shut_down()
            elif packet.kind == PacketKind.COUNTS:
                local.arena.taken_back_count, *_ = COUNTS.unpack(packet.data)

    async def _forward_replies(self, index: int) -> None:
        """Forward the messages of an instance to the front process, until the worker ends.

        Counts are sent before the first message, so that the front process knows the memory of a worker that
        is ready.
        """
        local = self._sockets[index]
        received = await local.receive_frame()
        self._link.write(PacketKind.COUNTS, self._read_counts(index), index)
        while received is not None:
            await self._link.send(PacketKind.FRAME, received.pack(), index)
            received = await local.receive_frame()

    async def _report_counts(self) -> None:
        """Regularly report changed counts of begun requests and busy instances' activity to the front.

        Runs until cancelled.
        """
        sent: list[bytes] = [b""] * self._count
        while True:
            await asyncio.sleep(COUNTS_EVERY_S)
            for index in range(self._count):
                counts = self._read_counts(index)
                if counts != sent[index]:
                    sent[index] = counts
                    self._link.write(PacketKind.COUNTS, counts, index)

    def _read_counts(self, index: int) -> bytes:
        """Return an instance's begun requests, CPU time, state and memory, packed as the data of a packet."""
        arena = self._sockets[index].arena
        activity = read_activity(self.pid, arena.thread_id if self._count > 1 else 0)
        cpu_s, state = (0.0, b"Z") if activity is None else (activity.cpu_s, activity.state.encode("ascii"))
        return COUNTS.pack(arena.begun_count, cpu_s, state, int(resident_bytes(self.pid)))

    async def _report_end(self, status: int) -> None:
        """Send the last counts and the exit status of the worker, and wait until the proxy has read them."""
        for index in range(self._count):
            self._link.write(PacketKind.COUNTS, self._read_counts(index), index)
        await self._link.send(PacketKind.ENDED, STATUS.pack(status))
        log.info("Worker %s (pid %d) has ended with %d", self.name, self.pid, status)


def shift_deadlines(data: bytes, offset_s: float) -> bytes:
    """Convert the deadlines of the requests in a frame to another machine's clock.

    offset_s: time.monotonic() there, minus time.monotonic() here. Raises ValueError for bytes that are not a
    frame.
    """
    received = WholeFrame.unpack(data)
    if received.kind != DispatchMessage.kind:
        return data
    message = _decode_dispatch(received.message)
    for call in message.calls:
        call.deadline += offset_s
    return received._replace(message=_encode(message)).pack()


@dataclass(frozen=True)
class AgentSettings:
    """Settings of an agent (a server that runs workers): its address, secret, TLS context and limits."""

    address: str
    token: bytes
    context: ssl.SSLContext | None
    max_workers: int  # 0: no limit
    idle_timeout_s: int  # after which it ends without a connection; 0: never


class Agent:
    """Accepts connections of proxies from other machines, and runs a worker process for each connection."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._workers: set[RemoteWorker] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._handshakes = 0
        self._stopping = False

    async def serve(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises StartFailed if the address can't be listened on."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        host, port = split_address(self._settings.address)
        try:
            server = await loop.create_server(
                lambda: create_server_protocol(self._accept), host, port, ssl=self._settings.context
            )
        except OSError as exc:
            raise StartFailed(f"{self._settings.address} can't be opened: {exc.strerror or exc}") from exc
        host, port = server.sockets[0].getsockname()[:2]
        log.info("Agent is ready at %s", f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        watching = [loop.create_task(self._stop_when_idle(stop))] if self._settings.idle_timeout_s else []
        await stop.wait()
        await cancel_tasks(watching)
        server.close()
        self._stopping = True
        log.info("Agent stops: %d workers end after their requests", len(self._workers))
        for worker in self._workers:
            worker.stop()
        if self._connections:
            await asyncio.wait(self._connections, timeout=STOP_S)
        for worker in list(self._workers):
            await worker.end()
        log.info("Agent has stopped")

    async def _stop_when_idle(self, stop: asyncio.Event) -> None:
        """Set the event `stop` once the agent had no connection for `idle_timeout_s`."""
        limit_s = self._settings.idle_timeout_s
        connected_at = time.monotonic()
        while time.monotonic() - connected_at < limit_s:
            await asyncio.sleep(IDLE_CHECK_S)
            if self._connections:
                connected_at = time.monotonic()
        log.info("No connection for %d s (--idle-timeout)", limit_s)
        stop.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve_link(Link(reader, writer)))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve_link(self, link: Link) -> None:
        """Run a worker for a proxy, from the handshake to the end of the connection."""
        peer = link.peer_address
        try:
            await self._run_worker(link)
        except (ServingError, OSError) as exc:
            log.warning("Connection of %s: %s", peer, getattr(exc, "message", exc))
        except Exception:
            log.exception("Connection of %s failed", peer)
        finally:
            link.abort()

    async def _run_worker(self, link: Link) -> None:
        if self._handshakes >= MAX_HANDSHAKES:
            raise LinkLost(f"{MAX_HANDSHAKES} other connections are not authenticated yet")
        self._handshakes += 1
        try:
            offer = await read_offer(link, self._settings.token)
        finally:
            self._handshakes -= 1
        limit = self._settings.max_workers
        if not 0 < offer.instances <= MAX_INSTANCES:
            raise await refuse(link, f"a worker has 1 to {MAX_INSTANCES} instances", is_final=True)
        if self._stopping:
            raise await refuse(link, "it stops", is_final=False)
        if limit and len(self._workers) >= limit:
            raise await refuse(link, f"it runs {limit} workers, its --max-workers", is_final=False)
        worker = RemoteWorker(link, offer)
        self._workers.add(worker)
        try:
            await worker.start()
            try:
                await accept(link, self._settings.token, offer)
                log.info("Worker %s (pid %d) starts for %s", worker.name, worker.pid, link.peer_address)
                await worker.run()
                await link.await_close(LAST_FRAMES_S)
            finally:
                await worker.end()
        finally:
            self._workers.discard(worker)


def create_settings(
    address: str, token_file: Path, cert: Path | None, key: Path | None, max_workers: int, idle_timeout_s: int
) -> AgentSettings:
    """Return the settings of an agent. Raises ConfigError for an address or a file that can't be used."""
    try:
        split_address(address)
    except ValueError as exc:
        raise ConfigError(f"--address: {exc}") from exc
    if (cert is None) != (key is None):
        raise ConfigError("--cert and --key belong together; name both or none")
    context = None
    if cert is not None and key is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(cert, key, password=_refuse_passphrase)
        except OSError as exc:  # ssl.SSLError is one
            raise ConfigError(f"--cert {cert} or --key {key} can't be used ({exc.strerror or exc})") from exc
    return AgentSettings(address, read_token(token_file), context, max_workers, idle_timeout_s)


def _refuse_passphrase() -> str:
    raise ConfigError("--key is locked with a passphrase; name a key without one")


def run_agent(settings: AgentSettings) -> None:
    """Run an agent until SIGTERM or SIGINT."""
    asyncio.run(Agent(settings).serve())
