"""The smallest possible pipeline: a process that speaks HTTP, and a process with tokenizer and predictor.

Run as `python -m bench.bare_pipeline PORT MODEL CONFIG`. It shows the cost of two processes for one caller:
without queue, batches, limits, deadlines, metrics, a second caller or error handling.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any, cast

import httptools
import msgspec
import numpy as np
import uvloop

from pipeline.process.environment import MODEL_PROCESS

_MAX_BYTES = 64 * 1024
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


class Worker:
    """Returns one answer for each body, in order."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._callers: deque[asyncio.Transport] = deque()
        asyncio.get_running_loop().add_reader(connection, self._answered)

    def ask(self, body: bytes, caller: asyncio.Transport) -> None:
        self._callers.append(caller)
        self._connection.send(body)

    def _answered(self) -> None:
        answer = self._connection.recv(_MAX_BYTES)
        caller = self._callers.popleft()
        if not caller.is_closing():
            caller.write(_HEAD % (len(answer), answer))


class Connection(asyncio.Protocol):
    """Passes each body on to the worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        if body:
            self._worker.ask(body, self._transport)
        else:  # a connection without a request, to see whether the server is up
            self._transport.write(_HEAD % (2, b"{}"))


async def serve(port: int, connection: socket.socket) -> None:
    worker = Worker(connection)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(worker), "127.0.0.1", port)
    await server.serve_forever()


def answer(predictor: Any, body: bytes) -> bytes:
    """Return the default service's response body to a request of one text."""
    logits = predictor.logits(msgspec.json.decode(body)["value"])
    scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
    label_id = scores.argmax(axis=-1)
    labels = np.array(predictor.labels)[label_id]
    values = [str(labels), str(label_id), str(scores.max(axis=-1) / scores.sum(axis=-1))]
    keys = ["label", "label_id", "confidence"]
    return msgspec.json.encode({"err_no": 0, "err_msg": "", "key": keys, "value": values, "tensors": []})


def work(connection: socket.socket, model: Path, config: Path) -> None:
    from bench.bare_predictor import BarePredictor

    predictor = BarePredictor(model, config)
    predictor.logits(["国足客场两球取胜"])
    connection.send(b"ready")
    while body := connection.recv(_MAX_BYTES):
        connection.send(answer(predictor, body))


def main(arguments: list[str]) -> None:
    if arguments[0] == "--worker":
        fd, model, config = arguments[1:]
        work(socket.socket(fileno=int(fd)), Path(model), Path(config))
        return
    port, model, config = arguments
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "bench.bare_pipeline", "--worker", str(theirs.fileno()), model, config]
    env = {**MODEL_PROCESS, **os.environ}
    with theirs:
        subprocess.Popen(command, pass_fds=[theirs.fileno()], env=env)
    ours.recv(_MAX_BYTES)
    ours.setblocking(False)
    uvloop.run(serve(int(port), ours))


if __name__ == "__main__":
    main(sys.argv[1:])
