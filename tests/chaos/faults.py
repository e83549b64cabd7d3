"""The faults: what is done to a service under load. Each returns when the service had its time to recover."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence

from tests.chaos.endpoints import KeyValueHttp, PipelineGrpc, V2Grpc
from tests.chaos.keeping_service import STALL_FILE, STALL_S
from tests.chaos.load import Load, endpoints
from tests.chaos.outcome import Death, Kind, Outcome
from tests.chaos.questions import POISON, Question
from tests.chaos.sequence_load import SequenceLoad

CROWD = 1200  # callers of a flood, more than `dag.max_pending_requests` of the shipped config.yml
LEAVING = 20  # clients that disconnect or cancel
_MALFORMED_S = 20.0  # longer than the service gives headers and bodies

Fault = Callable[[Load, random.Random], Awaitable[None]]


async def kill(load: Load, chance: random.Random) -> None:
    """SIGKILL for a worker, as the kernel does when memory runs out."""
    world = load.world
    before = await world.retried()
    worker = chance.choice(world.workers())
    os.kill(worker, signal.SIGKILL)
    death = Death(time.monotonic())
    load.tally.deaths.append(death)
    await world.until_replaced(worker)
    death.retried = await world.retried() - before
    death.over = True


async def hang(load: Load, chance: random.Random) -> None:
    """SIGSTOP for a worker: it never answers again, and has to be found out."""
    worker = chance.choice(load.world.workers())
    os.kill(worker, signal.SIGSTOP)
    await load.world.until_replaced(worker)


async def flood(load: Load, chance: random.Random) -> None:
    """Many more callers at once than may be pending."""
    crowd = [KeyValueHttp(load.world.http_port) for _ in range(CROWD)]
    await asyncio.gather(*(load.ask(endpoint, load.questions.next()) for endpoint in crowd))
    await asyncio.gather(*(endpoint.close() for endpoint in crowd))


async def disconnect(load: Load, chance: random.Random) -> None:
    """Clients that close the connection behind a whole request, or in the middle of one."""
    for _ in range(LEAVING):
        body = b'{"key": ["0"], "value": ["%b"]}' % load.questions.next().texts[0].encode()
        request = (
            b"POST /bert/prediction HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        _, writer = await asyncio.open_connection("127.0.0.1", load.world.http_port)
        writer.write(request if chance.random() < 0.5 else request[: chance.randrange(len(request))])
        await asyncio.sleep(chance.random() * 0.003)
        writer.transport.abort()


async def cancel(load: Load, chance: random.Random) -> None:
    """gRPC calls that are cancelled after up to 10 ms, whatever has become of them by then."""
    for kind in (PipelineGrpc, V2Grpc):
        endpoint = kind(load.world.rpc_port)
        for _ in range(LEAVING):
            call = asyncio.ensure_future(endpoint.ask(load.questions.next().texts))
            await asyncio.wait({call}, timeout=chance.random() * 0.01)
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await call
        await endpoint.close()


async def malform(load: Load, chance: random.Random) -> None:
    """Bytes that are no request, at both ports: each connection has to be answered or closed."""
    noise = chance.randbytes(200)
    broken = b'{"key": ["0"], "value": ["' + chance.randbytes(20)
    head = b"POST /bert/prediction HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    world = load.world
    bad = [
        (world.http_port, noise),
        (world.http_port, head % len(broken) + broken),
        (world.http_port, head % 2**62 + broken),
        (world.http_port, b"POST /v2/models/bert/infer HTTP/1.1\r\nHost: test\r\ncontent-length: 1\r\n\r\n["),
        (world.http_port, b"GET / HTTP/1.1\r\nHost: test\r\n" + b"x: y\r\n" * 20_000),
        (world.rpc_port, noise),
        (world.rpc_port, preface + noise),
    ]
    for port, data in bad:
        began = time.monotonic()
        outcome = await _until_closed(port, data)
        load.tally.note("malformed", outcome, began)


async def _until_closed(port: int, data: bytes) -> Outcome:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(_MALFORMED_S):
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                writer.write_eof()
                while await reader.read(65536):
                    pass
    except TimeoutError:
        return Outcome(Kind.FAILED, f"a connection stayed open {_MALFORMED_S:g} s on {data[:40]!r}")
    finally:
        writer.transport.abort()
    return Outcome(Kind.REFUSED, "malformed")


async def poison(load: Load, chance: random.Random) -> None:
    """A request that kills every worker that begins with it, among others that must not suffer."""
    endpoint = chance.choice(endpoints(load.world))
    question = load.questions.next()
    poisonous = Question([*question.texts, POISON], question.expected)
    began = time.monotonic()
    outcome = await load.ask_alone(endpoint, poisonous)
    if outcome != Outcome(Kind.REFUSED, "poison"):
        outcome = Outcome(
            Kind.FAILED, f"poison was not refused as such: {outcome.kind.value} {outcome.reason}"
        )
    load.tally.note(endpoint.name, outcome, began)
    await endpoint.close()
    await load.world.until_ready()


async def stall(load: Load, chance: random.Random) -> None:
    """A run that takes longer than its Op's `timeout`: its requests are tried again, its end is nobody's."""
    mark = load.world.folder / STALL_FILE
    mark.touch()
    while mark.exists():
        await asyncio.sleep(0.01)
    await asyncio.sleep(STALL_S)


async def leave(load: Load, chance: random.Random) -> None:
    """Clients that leave their sequence, or their stream of answers."""
    assert isinstance(load, SequenceLoad)
    await load.leave(chance)


async def reload(load: Load, chance: random.Random) -> None:
    """The model is loaded anew: every worker is exchanged for a new one."""
    await load.world.reload()


async def restart(load: Load, chance: random.Random) -> None:
    """SIGTERM, and the same service again once it has left."""
    await load.world.restart()


FAULTS: dict[str, Fault] = {
    "kill": kill, "hang": hang, "flood": flood, "disconnect": disconnect, "cancel": cancel,
    "malform": malform, "poison": poison, "stall": stall, "reload": reload, "restart": restart,
    "leave": leave,
}  # fmt: skip
OF_DEFAULT_SERVICE = [name for name in FAULTS if name not in ("stall", "leave")]
OF_SEQUENCES = ["kill", "hang", "malform", "restart", "leave"]


async def inflict(
    load: Load, names: Sequence[str], seconds: float, pause_s: float, chance: random.Random
) -> dict[str, int]:
    """The faults in turn, a pause before each, until the time is over or each had its turn; their counts."""
    until = time.monotonic() + seconds
    counts = dict.fromkeys(names, 0)
    while names and (time.monotonic() < until or 0 in counts.values()):
        for name in chance.sample(names, len(names)):
            if time.monotonic() >= until and counts[name]:
                continue
            await asyncio.sleep(pause_s)
            await FAULTS[name](load, chance)
            counts[name] += 1
    await asyncio.sleep(until - time.monotonic())
    return counts
