"""Broken requests over real connections: cut at odd places, truncated, changed, left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import random
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from client.protos.kserve_v2_pb2 import LogSettingsRequest, SystemSharedMemoryRegisterRequest
from client.protos.pipeline_service_pb2 import Request
from tests.fuzz import http2, messages
from tests.fuzz.mutation import Mutator
from tests.fuzz.seeds import HTTP_WORDS

AT_ONCE = 32  # connections
GOOD_EVERY = 10
QUIET_S = 0.2  # without a byte of the service: it has said what it will while both sides are open
HANG_S = 15.0  # the service closes what it was told is over, or what takes too long to arrive
PIPELINE = b"/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
_V2 = b"/inference.GRPCInferenceService/"
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing is a reset


@dataclass
class Sent:
    """Connections by how they ended; hangs: the bytes after which the service kept one open."""

    inputs: int = 0
    answered: int = 0
    refused: int = 0
    dropped: int = 0
    hangs: list[bytes] = field(default_factory=list)

    def add(self, other: Sent) -> None:
        self.inputs += other.inputs
        self.answered += other.answered
        self.refused += other.refused
        self.dropped += other.dropped
        self.hangs += other.hangs


class Endpoint:
    """One port: what is sent to it, and how its answers read."""

    def __init__(self, name: str, corpus: Sequence[bytes], words: Sequence[bytes], seed: int) -> None:
        self.name = name
        self._good = list(corpus)
        self._mutator = Mutator([*messages.kept(name), *corpus], words, seed)
        self._random = random.Random(seed)

    async def send(self, port: int, count: int) -> Sent:
        """`count` connections, `AT_ONCE` at a time; some with good calls: a change leaves little of one."""
        sent, free = Sent(), asyncio.Semaphore(AT_ONCE)

        async def one(data: bytes, way: float, cuts: list[int]) -> None:
            async with free:
                sent.inputs += 1
                try:
                    said = await asyncio.wait_for(_exchange(port, data, way, cuts), HANG_S)
                except TimeoutError:
                    sent.hangs.append(data)
                except OSError:
                    sent.dropped += 1
                else:
                    if b"HTTP/1.1 200" in said or b"grpc-status\x010" in said:
                        sent.answered += 1
                    elif said:
                        sent.refused += 1
                    else:
                        sent.dropped += 1

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                data = self._mutator.next() if number % GOOD_EVERY else self._random.choice(self._good)
                pieces = self._random.choice((0, 0, 1, 3))
                cuts = sorted(self._random.randrange(len(data) + 1) for _ in range(pieces))
                group.create_task(one(data, self._random.random(), cuts))
        return sent


async def _exchange(port: int, data: bytes, way: float, cuts: list[int]) -> bytes:
    """Everything the service says. way: how it ends: mostly half-closed, sometimes waited out or reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = b""
    try:
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            writer.write(data[start:end])
            await writer.drain()
            await asyncio.sleep(0)
        if way < 0.1:
            sock: socket.socket = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            return b""
        with contextlib.suppress(
            TimeoutError
        ):  # a server of gRPC leaves a call of who closes: settings come first
            while more := await asyncio.wait_for(reader.read(1 << 16), QUIET_S):
                said += more
        if not reader.at_eof():
            writer.write_eof()
            said += await reader.read(-1)
        return said
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def http_endpoint(seed: int) -> Endpoint:
    return Endpoint("http-endpoint", http_requests(), HTTP_WORDS, seed)


def grpc_endpoint(seed: int) -> Endpoint:
    return Endpoint("grpc-endpoint", grpc_calls(), http2.WORDS, seed)


_SETTINGS = (
    b"/v2/systemsharedmemory/region/a/register",
    b"/v2/systemsharedmemory/unregister",
    b"/v2/cudasharedmemory/region/a/register",
    b"/v2/models/test/trace/setting",
    b"/v2/logging",
)


def http_requests() -> list[bytes]:
    """Good requests on every route."""

    def post(path: bytes, body: bytes, *lines: bytes) -> bytes:
        head = [b"POST %b HTTP/1.1" % path, b"Host: test", b"Content-Length: %d" % len(body), *lines]
        return b"\r\n".join([*head, b"", body])

    requests = [post(b"/test/prediction", body) for body in messages.key_value_bodies()]
    for told in messages.v2_bodies():
        length, _, body = told.partition(b"\n")
        extra = [b"Inference-Header-Content-Length: " + length] if length.isdigit() else []
        requests.append(post(b"/v2/models/test/infer", body, *extra))
    body = b'{"inputs":[{"name":"a","shape":[1],"datatype":"BYTES","data":["b"]}]}'
    bomb = gzip.compress(b"[" * (8 << 20))
    requests += [
        post(b"/v2/models/test/versions/1/infer", gzip.compress(body), b"Content-Encoding: gzip"),
        post(b"/v2/models/test/infer", bomb, b"Content-Encoding: gzip"),
        post(b"/v2/models/test/infer", gzip.compress(bomb), b"Content-Encoding: gzip, gzip"),
        post(b"/v2/repository/index", b'{"ready": true}'),
        post(
            b"/test/prediction", b'{"key":["a"],"value":["b"]}', b"Grpc-Timeout: 5S", b"Expect: 100-continue"
        ),
    ]
    requests += [post(path, body) for path in _SETTINGS for body in messages.v2_settings()]
    pages = ("/health/live", "/health/ready", "/metrics", "/v2", "/v2/models/test/config", "/v2/models/stats")
    requests += [b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % page.encode() for page in pages]
    return [*requests, b"".join(requests[:5]), b"".join(requests[-9:])]


def grpc_calls() -> list[bytes]:
    """Good calls of every kind of method, each a connection."""
    good = Request(key=["a"], value=["b"]).SerializeToString()
    calls = [http2.call(PIPELINE, data) for data in messages.pipeline_calls()]
    calls += [http2.call(_V2 + b"ModelInfer", data) for data in messages.v2_calls("test")]
    calls += [
        http2.call(_V2 + name, b"")
        for name in (b"ServerLive", b"ServerReady", b"ServerMetadata", b"RepositoryIndex", b"TraceSetting")
    ]
    region = SystemSharedMemoryRegisterRequest(name="a", key="/none", offset=8, byte_size=64)
    level = LogSettingsRequest()
    level.settings["log_verbose_level"].uint32_param = 1
    calls += [
        http2.call(_V2 + b"SystemSharedMemoryRegister", region.SerializeToString()),
        http2.call(_V2 + b"SystemSharedMemoryUnregister", b""),
        http2.call(_V2 + b"LogSettings", level.SerializeToString()),
    ]
    calls += [
        http2.call(_V2 + b"ModelStreamInfer", messages.v2_calls("test")[0]),
        http2.call(b"/grpc.health.v1.Health/Check", b""),
        http2.call(PIPELINE, good, (b"grpc-timeout", b"1S"), (b"x-long", b"y" * 3000)),
        http2.call(PIPELINE, gzip.compress(good), (b"grpc-encoding", b"gzip"), compressed=True),
        http2.call(PIPELINE, gzip.compress(b"\0" * (8 << 20)), (b"grpc-encoding", b"gzip"), compressed=True),
        b"".join(http2.call(PIPELINE, good, stream=2 * i + 1) for i in range(40)),
        http2.call(b"/nobody/home", b""),
    ]
    return [http2.opening() + each for each in calls]
