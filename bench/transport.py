"""Round trips between two processes, by size: over the socket, and through the memfd of `messages.frames`.

The second table is of `messages.values`: an array inside the tree, and as a part beside it.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.console import Console
from rich.table import Table

from pipeline.messages import frames as wire
from pipeline.messages.frames import (
    Arena,
    FrameReader,
    Part,
    create_arena_fd,
    frame,
    reply_region,
    request_region,
)
from pipeline.messages.messages import Outcome, Reply, Settled, Stowed, Timings

KIB = 1024
TAIL_KIB = (4, 8, 16, 32, 64, 128, 256, 600, 2048)
ARRAY_BYTES = (256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
_RECEIVE_BYTES = 256 * KIB
_NEVER = 2**40
EXAMPLES = "example: python -m bench.transport --seconds 0.5"


def _reply(stowed: Stowed) -> Reply:
    return Reply(0, True, [Settled(0, Outcome.VALUE, stowed)], Timings())


def _get_parts(received: wire.Frame) -> Stowed:
    assert isinstance(received.message, Reply)
    return received.message.settled[0].parts


class Peer:
    """One end of a connection: sends a tail and reads one, as front and worker do."""

    def __init__(self, sock: socket.socket, arena: Arena, region: wire.Region) -> None:
        self._socket = sock
        self._arena = arena
        self._region = region
        self._frames = self._read(FrameReader(arena))

    def _read(self, reader: FrameReader) -> Iterator[wire.Frame]:
        while data := self._socket.recv(_RECEIVE_BYTES):
            yield from reader.feed(data)

    def send(self, part: Part) -> None:
        self._region.reset()
        tail: list[Part] = [part]
        for buffer in frame(_reply([len(part)]), tail, self._arena, self._region):
            self._socket.sendall(buffer)

    def receive(self) -> Part | None:
        received = next(self._frames, None)
        return None if received is None else received.tail.unstow(_get_parts(received))[0]


@contextmanager
def echo(arena_from: int) -> Iterator[Peer]:
    """Start a process that sends back each message, and yield this end: by memfd from `arena_from` bytes."""
    with patch.object(wire, "ARENA_BYTES_FROM", arena_from):
        arena_fd = create_arena_fd()
        ours, theirs = socket.socketpair()
        pid = os.fork()  # nothing but NumPy is loaded, and no thread runs
        if pid == 0:
            ours.close()
            _echo_forever(Peer(theirs, Arena(arena_fd), reply_region(0)))
        theirs.close()
        try:
            yield Peer(ours, Arena(arena_fd), request_region(0))
        finally:
            ours.close()
            os.waitpid(pid, 0)
            os.close(arena_fd)


def _echo_forever(peer: Peer) -> None:
    while (part := peer.receive()) is not None:
        peer.send(part)
    os._exit(0)


def best_us(function: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Return median and minimum time of a call, in us."""
    times_us: list[float] = []
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until or len(times_us) < 3:
        function()
        times_us.append((time.perf_counter() - began) * 1e6)
    return float(np.median(times_us)), min(times_us)


def round_trips(console: Console, seconds: float) -> None:
    table = Table(title=f"round trip of one part, us (now: memfd from {wire.ARENA_BYTES_FROM // KIB} KiB)")
    for heading in ("KiB", "socket p50", "memfd p50", "socket min", "memfd min"):
        table.add_column(heading, justify="right")
    with echo(_NEVER) as over_socket, echo(0) as over_memfd:
        for kib in TAIL_KIB:
            part = bytes(kib * KIB)

            def there_and_back(peer: Peer, part: bytes = part) -> None:
                peer.send(part)
                peer.receive()

            # patched per call: `frame` reads it, in this process for both peers
            with patch.object(wire, "ARENA_BYTES_FROM", _NEVER):
                by_socket = best_us(lambda: there_and_back(over_socket), seconds)
            with patch.object(wire, "ARENA_BYTES_FROM", 0):
                by_memfd = best_us(lambda: there_and_back(over_memfd), seconds)
            pairs = zip(by_socket, by_memfd, strict=True)
            table.add_row(str(kib), *(f"{us:.1f}" for pair in pairs for us in pair))
    console.print(table)


def encodings(console: Console, seconds: float) -> None:
    table = Table(
        title=f"encode, stow, unstow and decode one array, us (now: a part from {wire.INLINE_BYTES} B)"
    )
    for heading in ("bytes", "in the tree p50", "as a part p50", "in the tree min", "as a part min"):
        table.add_column(heading, justify="right")
    for size in ARRAY_BYTES:
        array = np.zeros(size // 4, np.float32)
        timed = []
        for threshold in (_NEVER, 0):
            with patch.object(wire, "INLINE_BYTES", threshold):
                timed.append(best_us(partial(_encoded_and_back, array), seconds))
        pairs = zip(*timed, strict=True)
        table.add_row(str(size), *(f"{us:.2f}" for pair in pairs for us in pair))
    console.print(table)


def _encoded_and_back(array: np.ndarray[Any, Any]) -> object:
    tail: list[Part] = []
    stowed = wire.stow(wire.encode({"logits": array}, allow_pickle=False), tail)
    buffers = frame(_reply(stowed), tail)
    (received,) = FrameReader(None).feed(b"".join(buffers))
    return wire.decode(received.tail.unstow(_get_parts(received)), allow_pickle=False)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.transport", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=0.3, help="a cell of the tables (default: %(default)s)"
    )
    options = parser.parse_args()
    console = Console()
    round_trips(console, options.seconds)
    encodings(console, options.seconds / 3)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
