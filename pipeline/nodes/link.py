"""The connection between the proxy of a worker, beside the front, and the agent on the worker's node.

Proxy and agent prove to each other that they know the token (HMAC-SHA256 over a nonce of the other side), and
compare their versions. Then packets carry complete frames of `pipeline.messages.frames` in both directions,
counts of begun and recalled requests, and the exit status of the worker. A placer answers a proxy in place of
an agent, with the address of the agent that it has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import platform
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, SupportsIndex

import msgspec

from pipeline import __version__
from pipeline.config.nodes_section import split_address
from pipeline.errors import ServingError
from pipeline.messages.frames import FRAME_LIMIT, PROTOCOL_VERSION, Part

HANDSHAKE_S = 10.0
CONNECT_S = 2.0  # then a new attempt: the kernel doubles its pauses while a network is interrupted
PINGS = 5  # in the time after which a silent connection is lost
COUNTS_EVERY_S = 0.1
PYTHON = ".".join(platform.python_version_tuple()[:2])
_HANDSHAKE_BYTES = 4096  # largest packet before both sides are authenticated
_MAC_BYTES = hashlib.sha256().digest_size
_NONCE_BYTES = 32
_BUFFER_BYTES = 1 << 20
_HEADER = struct.Struct("<BBxxI")  # kind, instance, bytes
# Count of begun or recalled requests; CPU time and state of the instance; memory of the worker.
COUNTS = struct.Struct("<qdcq")
STATUS = struct.Struct("<i")


class LinkLost(ServingError):
    """Raised when the other side has closed the connection, or has been silent for too long."""


class AgentRefused(ServingError):
    """Raised when an agent (a server that runs workers) refuses a worker.

    `is_final` tells whether retries would fail, too.
    """

    is_final = False


class PacketKind(IntEnum):
    """Types of packets between a proxy (on the service's machine) and an agent (the worker's) or placer."""

    CHALLENGE = 0  # agent: its nonce
    OFFER = 1  # proxy: a MAC, and the `Offer` in JSON
    ACCEPTED = 2  # agent: a MAC over the proxy's nonce
    REFUSED = 3  # agent: a `Refused` in JSON
    FRAME = 4  # a frame between front and instance, with its tail
    END = 5  # the other end of the instance's socket is shut down
    COUNTS = 6  # agent: begun requests, activity and memory of an instance; proxy: recalled requests
    PING = 7
    ENDED = 8  # agent: the exit status of the worker
    WAITING = 9  # placer: no agent yet, with the reason in UTF-8
    MOVED = 10  # placer: a MAC, and the `Place` of the agent for the worker in JSON


class Packet(NamedTuple):
    """A packet received from the other side of a link."""

    kind: int
    instance: int  # index of the worker instance
    data: bytes


class Offer(msgspec.Struct):
    """First message of a proxy to an agent (a server that runs workers): describes the worker to start."""

    nonce: bytes
    protocol: str  # see `frames.PROTOCOL_VERSION`
    version: str  # of the package
    python: str
    name: str  # of the worker, for log lines
    op: str
    instances: int
    now: float  # time.monotonic() of the front's machine
    timeout_s: float  # see `nodes.timeout`


class Refused(msgspec.Struct):
    """Reply of an agent (a server that runs workers) that refuses to start a worker."""

    reason: str
    is_final: bool  # whether every later try would be refused, too


class Place(msgspec.Struct):
    """Reply of a placer, which starts agents on a Ray cluster: the address of the started agent."""

    address: str
    ca_file: str = ""  # authorities of the agent's certificate; empty: no encryption


class _CountingReader(asyncio.StreamReader):
    """A stream reader that counts what it receives, so that a silent connection can be detected."""

    received = 0

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        self.received += 1
        super().feed_data(data)


class Link:
    """A connection that carries packets between a proxy and an agent, which runs its worker, or a placer.

    timeout_s: time without received bytes after which `await_silence` raises LinkLost.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.timeout_s = HANDSHAKE_S
        self._reader = reader
        self._writer = writer
        self._is_reading = False
        self._placer_link: Link | None = None

    @property
    def peer_address(self) -> str:
        """Address of the other side, for log lines."""
        host, port, *_ = self._writer.get_extra_info("peername") or ("?", 0)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def write(self, kind: PacketKind, data: Part = b"", instance: int = 0) -> None:
        """Send a packet, without waiting until it is written to the socket."""
        self._writer.write(_HEADER.pack(kind, instance, len(data)))
        if data:
            self._writer.write(data)

    async def send(self, kind: PacketKind, data: Part = b"", instance: int = 0) -> None:
        """Send a packet, and wait while the other side reads too slowly. Raises LinkLost."""
        self.write(kind, data, instance)
        try:
            await self._writer.drain()
        except OSError as exc:
            raise LinkLost(f"the connection to {self.peer_address} broke: {exc}") from exc

    async def receive_packet(self, limit: int = FRAME_LIMIT) -> Packet:
        """Wait for the next packet.

        Raises LinkLost if the connection ends, and for a packet over `limit` bytes.
        """
        self._is_reading = True
        try:
            kind, instance, size = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
            if size > limit:
                raise LinkLost(
                    f"{self.peer_address} sent a packet of {size} bytes, at most {limit} are allowed"
                )
            return Packet(kind, instance, await self._reader.readexactly(size))
        except (OSError, EOFError) as exc:
            raise LinkLost(f"{self.peer_address} closed the connection") from exc
        finally:
            self._is_reading = False

    async def read_handshake(self, *kinds: PacketKind) -> Packet:
        """Wait for a short packet of one of these kinds.

        Raises LinkLost for other packets, if the connection ends, and after `HANDSHAKE_S`.
        """
        try:
            packet = await asyncio.wait_for(self.receive_packet(_HANDSHAKE_BYTES), HANDSHAKE_S)
        except TimeoutError as exc:
            raise LinkLost(f"{self.peer_address} sent nothing within {HANDSHAKE_S:g} s") from exc
        if packet.kind not in kinds:
            raise LinkLost(f"{self.peer_address} does not speak the protocol of `paddlewheel agent`")
        return packet

    async def await_silence(self) -> None:
        """Send pings, and raise LinkLost when the other side sends nothing for `timeout_s`.

        Silence is counted in wake-ups of this process, not in elapsed time: after this process was stopped,
        it first reads the bytes that have arrived.
        """
        silent, before = 0, -1
        while silent < PINGS:
            await asyncio.sleep(self.timeout_s / PINGS)
            self.write(PacketKind.PING)
            received = getattr(self._reader, "received", 0)
            silent = silent + 1 if self._is_reading and received == before else 0
            before = received
        raise LinkLost(f"{self.peer_address} sent nothing for {self.timeout_s:g} s")

    async def await_close(self, timeout_s: float) -> None:
        """Wait until the other side has closed the connection, for `timeout_s` at most.

        Closing it earlier, with bytes unread, could discard bytes that the other side has not received.
        """
        with contextlib.suppress(TimeoutError, LinkLost):
            async with asyncio.timeout(timeout_s):
                while True:
                    await self.receive_packet()

    def keep_open(self, placer_link: Link) -> None:
        """Keep the connection to the placer open for the lifetime of this connection to the agent."""
        self._placer_link = placer_link

    def abort(self) -> None:
        """Close the connection without sending buffered bytes."""
        self._writer.transport.abort()


async def open_link(address: str, context: ssl.SSLContext | None) -> Link:
    """Connect to an agent.

    Each address of the host has `CONNECT_S` to accept, and the TLS handshake `HANDSHAKE_S`. Raises OSError,
    which is a TimeoutError after these times.
    """
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    reader = _CountingReader(_BUFFER_BYTES, loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    server_hostname = host if context is not None else None
    connected = await _open_socket(host, port)
    encrypting = loop.create_connection(
        lambda: protocol, sock=connected, ssl=context, server_hostname=server_hostname
    )
    transport, _ = await asyncio.wait_for(encrypting, HANDSHAKE_S)
    return Link(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


async def _open_socket(host: str, port: int) -> socket.socket:
    """Connect to the first address of a host that accepts, and return the socket. Raises OSError."""
    loop = asyncio.get_running_loop()
    errors: list[OSError] = []
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connecting = socket.socket(family, kind, protocol)
        connecting.setblocking(False)
        try:
            await asyncio.wait_for(loop.sock_connect(connecting, address), CONNECT_S)
            return connecting
        except OSError as exc:  # TimeoutError is one
            connecting.close()
            errors.append(exc)
        except BaseException:
            connecting.close()
            raise
    raise errors[0]


def create_server_protocol(connected: object) -> asyncio.StreamReaderProtocol:
    """Return the asyncio protocol of an incoming connection.

    connected: called with reader and writer.
    """
    loop = asyncio.get_running_loop()
    return asyncio.StreamReaderProtocol(_CountingReader(_BUFFER_BYTES, loop), connected, loop)  # type: ignore[arg-type]


class WorkerRequest(NamedTuple):
    """A proxy's request for a worker, which an agent is to start."""

    token: bytes
    name: str  # of the worker
    op: str
    instances: int
    timeout_s: float  # see `nodes.timeout`


async def offer_worker(link: Link, request: WorkerRequest, log_reason: Callable[[str], None]) -> Place | None:
    """Authenticate at an agent or placer, and request a worker. Return None if an agent starts the worker.

    A placer starts an agent instead: then the place of that agent is returned. The agent runs until the
    connection to the placer is closed. log_reason: called with the reason while the placer has no agent yet.
    Raises AgentRefused and LinkLost.
    """
    token = request.token
    challenge = await link.read_handshake(PacketKind.CHALLENGE)
    nonce = os.urandom(_NONCE_BYTES)
    versions = PROTOCOL_VERSION, __version__, PYTHON
    worker = request.name, request.op, request.instances
    data = msgspec.json.encode(Offer(nonce, *versions, *worker, time.monotonic(), request.timeout_s))
    await link.send(PacketKind.OFFER, _mac(token, b"proxy", challenge.data, data) + data)
    last_kinds = PacketKind.ACCEPTED, PacketKind.REFUSED, PacketKind.MOVED
    while (answer := await link.read_handshake(*last_kinds, PacketKind.WAITING)).kind == PacketKind.WAITING:
        log_reason(answer.data.decode("utf-8", "replace"))
    if answer.kind == PacketKind.REFUSED:
        refused = msgspec.json.decode(answer.data, type=Refused)
        error = AgentRefused(f"the agent {link.peer_address} refuses: {refused.reason}")
        error.is_final = refused.is_final
        raise error
    mac, place = answer.data[:_MAC_BYTES], answer.data[_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(token, b"agent", nonce, place)):
        error = AgentRefused(f"{link.peer_address} does not know the token of nodes.token_file")
        error.is_final = True
        raise error
    link.timeout_s = request.timeout_s
    return msgspec.json.decode(place, type=Place) if place else None


async def read_offer(link: Link, token: bytes) -> Offer:
    """Challenge a proxy, and return its offer. Raises AgentRefused for a wrong token or another version.

    The proxy is told of a refusal first. After an offer, call `accept`.
    """
    nonce = os.urandom(_NONCE_BYTES)
    await link.send(PacketKind.CHALLENGE, nonce)
    packet = await link.read_handshake(PacketKind.OFFER)
    mac, data = packet.data[:_MAC_BYTES], packet.data[_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(token, b"proxy", nonce, data)):
        raise await refuse(link, "its token is another than that of nodes.token_file", is_final=True)
    try:
        offer = msgspec.json.decode(data, type=Offer)
    except msgspec.MsgspecError:  # only another version of ours knows the token
        raise await refuse(link, f"it runs paddlewheel {__version__}", is_final=True) from None
    if offer.python != PYTHON:
        reason = f"it runs Python {PYTHON}, the front runs {offer.python}"
        raise await refuse(link, reason, is_final=True)
    if offer.protocol != PROTOCOL_VERSION:
        reason = (
            f"it runs another build of the package (paddlewheel {__version__}, protocol {PROTOCOL_VERSION}; "
            f"the front has {offer.version}, {offer.protocol}); install the same on all machines"
        )
        raise await refuse(link, reason, is_final=True)
    link.timeout_s = offer.timeout_s
    return offer


async def accept(link: Link, token: bytes, offer: Offer) -> None:
    """Tell a proxy that its worker is starting, and prove that this agent knows the token."""
    await link.send(PacketKind.ACCEPTED, _mac(token, b"agent", offer.nonce, b""))


async def move(link: Link, token: bytes, offer: Offer, place: Place) -> None:
    """Tell a proxy the address of another agent (a server that runs workers), which starts its worker."""
    data = msgspec.json.encode(place)
    await link.send(PacketKind.MOVED, _mac(token, b"agent", offer.nonce, data) + data)


async def refuse(link: Link, reason: str, *, is_final: bool) -> AgentRefused:
    """Tell a proxy why no worker is started, and return the exception to raise."""
    await link.send(PacketKind.REFUSED, msgspec.json.encode(Refused(reason, is_final)))
    return AgentRefused(f"refused {link.peer_address}: {reason}")


async def cancel_tasks(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _mac(token: bytes, side: bytes, nonce: bytes, data: bytes) -> bytes:
    return hmac.digest(token, side + nonce + data, "sha256")
