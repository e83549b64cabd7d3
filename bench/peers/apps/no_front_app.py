"""Trial: `python -m bench.peers.apps.no_front_app PORT`.

Each process has its own connections, batches and predictor, so no request crosses a process boundary. The
trial has no admission, limits, metrics or recovery.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections import deque
from typing import cast

import httptools
import msgspec
import uvloop

from bench.peers.apps.classifier import BATCH, INSTANCES, Classifier

MAX_TEXTS = 64  # sorted by length together
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_encode = msgspec.json.Encoder().encode


class Body(msgspec.Struct):
    text: str


_decode = msgspec.json.Decoder(Body).decode


class Batcher:
    """Collects texts from the event loop, and classifies them in one thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[tuple[Connection, str]] = deque()
        self._ready = threading.Condition()
        self._classifier = Classifier()
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, connection: Connection, text: str) -> None:
        with self._ready:
            self._queue.append((connection, text))
            self._ready.notify()

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._queue:
                    self._ready.wait()
                count = min(len(self._queue), MAX_TEXTS)
                jobs = sorted((self._queue.popleft() for _ in range(count)), key=lambda job: len(job[1]))
            responses: list[tuple[Connection, bytes]] = []
            for start in range(0, len(jobs), BATCH):
                batch = jobs[start : start + BATCH]
                answers = self._classifier.classify([text for _, text in batch])
                responses += [(job[0], _encode(answer)) for job, answer in zip(batch, answers, strict=True)]
            self._loop.call_soon_threadsafe(_respond, responses)


def _respond(responses: list[tuple[Connection, bytes]]) -> None:
    for connection, body in responses:
        connection.respond(body)


class Connection(asyncio.Protocol):
    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        self._batcher.add(self, _decode(body).text)

    def respond(self, body: bytes) -> None:
        self._transport.write(_HEAD % len(body) + body)


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    batcher = Batcher(loop)
    listener = socket.create_server(("127.0.0.1", port), backlog=2048, reuse_port=True)
    server = await loop.create_server(lambda: Connection(batcher), sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    for _ in range(INSTANCES):
        if os.fork() == 0:
            uvloop.run(serve(int(sys.argv[1])))
            sys.exit()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os.killpg(0, signal.SIGKILL)
