"""Hostile clients: requests that are cheap to send and dear to serve, sent beside the load.

`python -m tests.chaos.hostile HTTP_PORT RPC_PORT ATTACK...` attacks until its standard input ends. Then it
prints a JSON object with the statuses of the answers to each attack. It is a process of its own with a low
priority: real attackers do not share the service's cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc.aio

from bench.load import CannotMeasure
from bench.running import ROOT
from client.protos import kserve_v2_pb2 as v2
from client.protos.pipeline_service_pb2 import Request, Tensor
from pipeline.dialects.message_fields import encode_varint
from tests.chaos.endpoints import PIPELINE, V2_INFER

NICENESS = 10
CONNECTIONS, PIPELINED = 300, 50  # of the flood of GET /metrics
_PATIENCE_S = 30.0
_PAUSE_S = 0.05
_MEGABYTE = 1 << 20
_BODY_BYTES = 60 * _MEGABYTE  # below `limits.body_bytes`
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")

Tallies = dict[str, Counter[str]]
Attack = Callable[["Target", Counter[str]], Awaitable[None]]


class Target:
    """The ports of the service under attack."""

    def __init__(self, http_port: int, rpc_port: int) -> None:
        self.http_port, self.rpc_port = http_port, rpc_port

    async def post(self, path: str, body: bytes, statuses: Counter[str], headers: bytes = b"") -> None:
        """Send a POST on a new connection and count the status of its answer."""
        head = b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n"
        await self.exchange([head % (path.encode(), headers, len(body)), body], 1, statuses)

    async def exchange(self, parts: list[bytes], answers: int, statuses: Counter[str]) -> None:
        """Send bytes on a new connection, and count the statuses of so many answers."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.http_port)
        sending = asyncio.ensure_future(_send(writer, parts))
        counted, rest = 0, b""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while counted < answers and (data := await reader.read(_MEGABYTE)):
                    data = rest + data
                    codes = _STATUS.findall(data)
                    counted += len(codes)
                    statuses.update(code.decode() for code in codes)
                    rest = data[-12:] if not _STATUS.search(data[-12:]) else b""
        finally:
            sending.cancel()
            writer.transport.abort()

    async def call(self, method: str, message: bytes, statuses: Counter[str]) -> None:
        """Send a gRPC message and count the code of its answer."""
        unlimited = [("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.rpc_port}", options=unlimited) as channel:
            try:
                await channel.unary_unary(method)(message, timeout=_PATIENCE_S)
                statuses["OK"] += 1
            except grpc.aio.AioRpcError as exc:
                statuses[exc.code().name] += 1


async def _send(writer: asyncio.StreamWriter, parts: list[bytes]) -> None:
    with contextlib.suppress(OSError):
        for part in parts:
            writer.write(part)
            await writer.drain()


async def empty_rows(target: Target, statuses: Counter[str]) -> None:
    """Rows without an element, which a batch of the good requests must not meet."""
    names = ("input_ids", "token_type_ids", "attention_mask")
    instance = {"instances": [{name: [] for name in names}]}
    tensors = [{"name": name, "shape": [1, 0], "datatype": "INT64", "data": []} for name in names]
    await target.post("/v1/models/bert_model:predict", json.dumps(instance).encode(), statuses)
    await target.post("/v2/models/bert_model/infer", json.dumps({"inputs": tensors}).encode(), statuses)
    message = v2.ModelInferRequest(model_name="bert_model")
    for name in names:
        message.inputs.add(name=name, shape=[1, 0], datatype="INT64")
        message.raw_input_contents.append(b"")
    await target.call(V2_INFER, message.SerializeToString(), statuses)


async def pipelined_metrics(target: Target, statuses: Counter[str]) -> None:
    """Many connections, each with many requests for the page of metrics at once."""
    requests = [b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * PIPELINED]
    many = (target.exchange(requests, PIPELINED, statuses) for _ in range(CONNECTIONS))
    for result in await asyncio.gather(*many, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, (OSError, TimeoutError)):
            raise result


async def many_fields(target: Target, statuses: Counter[str]) -> None:
    """Bodies below the limit of their size, full of parameters, outputs and brackets."""
    tensor = '{"name":"text","shape":[1],"datatype":"BYTES","data":["x"]}'
    parameters = ",".join(f'"p{number}":1' for number in range(4_000_000))
    outputs = ",".join(['{"name":"label"}'] * 3_000_000)
    bodies = (
        f'{{"inputs":[{tensor}],"parameters":{{{parameters}}}}}',
        f'{{"inputs":[{tensor}],"outputs":[{outputs}]}}',
        f'{{"inputs":[{tensor}],"parameters":{"[" * 10_000_000}{"]" * 10_000_000}}}',
    )
    for body in bodies:
        await target.post("/v2/models/bert/infer", body.encode(), statuses)


async def many_rows(target: Target, statuses: Counter[str]) -> None:
    """One body with as many rows as fit into it, as texts and as one tensor."""
    count = 3_000_000
    texts = ",".join(['"x"'] * count)
    body = f'{{"inputs":[{{"name":"text","shape":[{count}],"datatype":"BYTES","data":[{texts}]}}]}}'
    await target.post("/v2/models/bert/infer", body.encode(), statuses)
    message = v2.ModelInferRequest(model_name="bert_model")
    for name in ("input_ids", "token_type_ids", "attention_mask"):
        message.inputs.add(name=name, shape=[2_000_000, 1], datatype="INT64")
        message.raw_input_contents.append(b"\1" + bytes(16_000_000 - 1))
    await target.call(V2_INFER, message.SerializeToString(), statuses)
    for make_body in (numbers_in_json, texts_in_json, invalid_text):
        await target.post("/bert/prediction", make_body(), statuses)
    await target.call(PIPELINE, numbers_in_message(), statuses)


_NUMBERS = 30_000_000


def numbers_in_json() -> bytes:
    """Return a key/value body with a tensor of many numbers."""
    tensor = b'{"name":"x","shape":[%d],"int64_data":[%b7]}' % (_NUMBERS, b"7," * (_NUMBERS - 1))
    return b'{"key":["0"],"value":["x"],"tensors":[%b]}' % tensor


def texts_in_json() -> bytes:
    """Return a key/value body with a tensor of many texts."""
    texts = b'"x",' * (_BODY_BYTES // 4 - 100)
    return b'{"key":["0"],"value":["x"],"tensors":[{"name":"x","elem_type":12,"str_data":[%b""]}]}' % texts


def invalid_text() -> bytes:
    """Return a key/value body with a text of bytes that are no UTF-8."""
    return b'{"key":["0"],"value":["%b"]}' % (b"\xff" * _BODY_BYTES)


def numbers_in_message() -> bytes:
    """Return a PipelineService message with a tensor of many numbers."""
    numbers = bytes([Tensor.INT64_DATA_FIELD_NUMBER << 3 | 2]) + encode_varint(_NUMBERS) + b"\7" * _NUMBERS
    tensor = Tensor(name="x", shape=[_NUMBERS]).SerializeToString() + numbers
    message = Request(name="bert", key=["0"], value=["x"]).SerializeToString()
    return message + bytes([Request.TENSORS_FIELD_NUMBER << 3 | 2]) + encode_varint(len(tensor)) + tensor


async def bodies_for_public_pages(target: Target, statuses: Counter[str]) -> None:
    """Large bodies for pages that need no key, and large messages for methods that do not exist."""
    body = bytes(_BODY_BYTES)
    for path in ("/health/live", "/metrics", "/docs", "/no/such/page/at/all"):
        await target.post(path, body, statuses)
    await target.call("/inference.GRPCInferenceService/NoSuchMethod", body, statuses)


ATTACKS: dict[str, tuple[Attack, float]] = {
    # name: the attack, and the pause after each of its rounds in seconds
    "empty-rows": (empty_rows, _PAUSE_S),
    "pipelined-metrics": (pipelined_metrics, 2.0),
    "many-fields": (many_fields, 2.0),
    "many-rows": (many_rows, 2.0),
    "public-bodies": (bodies_for_public_pages, 1.0),
}


@contextlib.asynccontextmanager
async def hostile_clients(http_port: int, rpc_port: int, attacks: list[str]) -> AsyncIterator[Tallies]:
    """Attack while the block runs; the mapping is filled when it ends. Raises CannotMeasure."""
    tallies: Tallies = {}
    if not attacks:
        yield tallies
        return
    command = [
        "nice",
        "-n",
        NICENESS,
        sys.executable,
        "-m",
        "tests.chaos.hostile",
        http_port,
        rpc_port,
        *attacks,
    ]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*map(str, command), cwd=ROOT, stdin=pipe, stdout=pipe)
    try:
        yield tallies
        printed, _ = await process.communicate(b"")
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise CannotMeasure(f"the hostile clients left with {process.returncode}")
    tallies.update({name: Counter(counts) for name, counts in json.loads(printed).items()})


async def _repeat(attack: Attack, pause_s: float, target: Target, statuses: Counter[str]) -> None:
    while True:
        try:
            await attack(target, statuses)
        except (OSError, EOFError, TimeoutError):  # the service restarts, or has closed the connection
            statuses["closed"] += 1
        await asyncio.sleep(pause_s)


async def _attack(http_port: int, rpc_port: int, names: list[str]) -> Tallies:
    target = Target(http_port, rpc_port)
    tallies: Tallies = {name: Counter() for name in names}
    running = [asyncio.ensure_future(_repeat(*ATTACKS[name], target, tallies[name])) for name in names]
    ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.buffer.read))
    await asyncio.wait([*running, ended], return_when=asyncio.FIRST_COMPLETED)
    for task in running:
        if task.done():
            task.result()  # an attack that raised
        task.cancel()
    return tallies


if __name__ == "__main__":
    http_port, rpc_port, *names = sys.argv[1:]
    json.dump(asyncio.run(_attack(int(http_port), int(rpc_port), names)), sys.stdout)
