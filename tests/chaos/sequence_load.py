"""The load of a model repository: sequences with state in the front, streams of answers, generations."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np

from bench.sequences import TOLERANCE, Reference, build_message
from client.endpoints import V2_METHOD_PATH
from client.protos.kserve_v2_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from tests.chaos.load import PATIENCE_S, PAUSE_S, Load
from tests.chaos.outcome import Kind, Outcome
from tests.chaos.questions import Questions
from tests.chaos.world import World
from tests.support.answer_streams import REPEAT, STREAM, numbers_request, write_repeat
from tests.support.sequence_models import COUNTDOWN, WIDTH, write_countdown, write_memory

SEQUENCE, STREAMED, GENERATED = "sequence", "stream", "generative stream"
LEAVING = 20  # clients that leave, of each kind
_IDLE_S = 600  # longer than a run: a sequence of a client that left stays, as its bytes do
_LONGEST_SEQUENCE, _LONGEST_STREAM = 20, 200
_DOWN, _RESTARTING, _WORKER_DIED = "not there", "restarting", "a worker died under a stream"
_CLOSED_CHANNEL = (
    "Internal error from Core"  # of the client's library: a call began as its channel was closed
)
_DEATHS = ("has answers already", "the instance that kept its state")


def write_models(repository: Path) -> Path:
    """Write the models of the load. Return the file of the recurrent model."""
    write_repeat(repository)
    write_countdown(repository)
    return write_memory(repository, idle_s=_IDLE_S) / "1/model.onnx"


class SequenceLoad(Load):
    """Sends sequences and streams; each answer is compared with the model run alone."""

    def __init__(self, world: World, model: Path, callers: int, seed: int) -> None:
        super().__init__(world, Questions([]), callers)
        self._reference = Reference(model)
        self._chance = random.Random(seed)
        self._numbers = itertools.count(1)  # ids of sequences
        self._channel: Any = None

    def _list_calls(self) -> list[Coroutine[Any, Any, None]]:
        kinds = (self.send_sequence, self.send_stream, self.send_generative)
        return [self._repeat(send) for send in kinds for _ in range(self._callers)]

    async def _repeat(self, send: Any) -> None:
        while not self._stop:
            if not await send():
                await asyncio.sleep(PAUSE_S)

    async def alone_s(self) -> float:
        """Seconds of a sequence's request while there is no other."""
        began = time.monotonic()
        await self.send_sequence(_LONGEST_SEQUENCE)
        return (time.monotonic() - began) / _LONGEST_SEQUENCE

    async def send_sequence(self, requests: int = 0) -> bool:
        """Send a sequence, and judge each answer. Return whether all its requests are answered."""
        number, state = next(self._numbers), np.zeros((1, WIDTH), np.float32)
        restarts, count = self.world.restarts, requests or self._chance.randint(1, _LONGEST_SEQUENCE)
        for at in range(count):
            row = np.array([[self._chance.uniform(-1, 1) for _ in range(WIDTH)]], np.float32)
            message = build_message(number, row, starts=at == 0, ends=at == count - 1)
            state = self._reference.run(row, state)
            began, away = time.monotonic(), self.world.away
            try:
                answer = await self._get_channel().unary_unary(V2_METHOD_PATH)(message, timeout=PATIENCE_S)
                outcome = _compare(answer, state)
            except grpc.aio.AioRpcError as exc:
                outcome = _judge_status(exc)
                if "must specify the START flag" in (exc.details() or "") and restarts != self.world.restarts:
                    outcome = Outcome(Kind.REFUSED, _RESTARTING)  # a stop ends all sequences
            if not self._record(SEQUENCE, outcome, began, away=away):
                return False
        return True

    async def send_stream(self) -> bool:
        """Ask a decoupled model to repeat numbers. Return whether all of them came in order."""
        numbers = [self._chance.randrange(1 << 30) for _ in range(self._chance.randint(0, _LONGEST_STREAM))]
        return await self._receive(STREAMED, numbers_request(REPEAT, numbers), numbers)

    async def send_generative(self) -> bool:
        """Ask a generative model to count down. Return whether all numbers came in order."""
        count = self._chance.randint(1, _LONGEST_STREAM)
        message = numbers_request(COUNTDOWN, [count])
        message.inputs[0].shape[:] = [1, 1]
        return await self._receive(GENERATED, message, range(count - 1, -1, -1))

    async def _receive(self, kind: str, message: ModelInferRequest, expected: Sequence[int]) -> bool:
        began, away = time.monotonic(), self.world.away
        try:
            outcome = await asyncio.wait_for(self._read_stream(message, list(expected)), PATIENCE_S)
        except TimeoutError:
            outcome = Outcome(Kind.FAILED, f"no end of a stream in {PATIENCE_S:g} s")
        except grpc.aio.AioRpcError as exc:
            outcome = _judge_status(exc)
        return self._record(kind, outcome, began, away=away)

    async def _read_stream(self, message: ModelInferRequest, expected: list[int]) -> Outcome:
        call = self._get_channel().stream_stream(STREAM)(iter([message.SerializeToString()]))
        received = list[int]()
        try:
            async for data in call:
                answer = ModelStreamInferResponse.FromString(data)
                if answer.error_message:
                    return _judge_error(answer.error_message)
                (content,) = answer.infer_response.raw_output_contents
                received += np.frombuffer(content, "<i4").tolist()
                if received != expected[: len(received)]:
                    return Outcome(
                        Kind.MISMATCHED, f"{received[-3:]} at {len(received)} of {expected[:3]}..."
                    )
        finally:
            call.cancel()
        if len(received) < len(expected):
            return Outcome(Kind.MISMATCHED, f"{len(received)} answers of {len(expected)}")
        return Outcome(Kind.ANSWERED)

    def _record(self, kind: str, outcome: Outcome, began: float, *, away: bool) -> bool:
        if outcome == Outcome(Kind.REFUSED, _DOWN):
            is_due = away or self.world.away
            outcome = Outcome(Kind.REFUSED, _RESTARTING) if is_due else Outcome(Kind.FAILED, "nobody there")
        self.tally.note(kind, outcome, began)
        return outcome.kind is Kind.ANSWERED

    async def leave(self, chance: random.Random) -> None:
        """Begin sequences, streams and generations, and leave each of them within 10 ms."""
        sends = (self._begin_sequence, self._begin_stream, self._begin_generation)
        for begin in sends * LEAVING:
            call = asyncio.ensure_future(begin())
            await asyncio.wait({call}, timeout=chance.random() * 0.01)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

    async def _begin_sequence(self) -> None:
        message = build_message(
            next(self._numbers), np.zeros((1, WIDTH), np.float32), starts=True, ends=False
        )
        await self._get_channel().unary_unary(V2_METHOD_PATH)(message)

    async def _begin_stream(self) -> None:
        await self._read_stream(numbers_request(REPEAT, [*range(5000)]), [*range(5000)])

    async def _begin_generation(self) -> None:
        message = numbers_request(COUNTDOWN, [5000])
        message.inputs[0].shape[:] = [1, 1]
        await self._read_stream(message, [*range(4999, -1, -1)])

    def _get_channel(self) -> Any:
        if self._channel is None:  # in the event loop
            options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]
            self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.world.rpc_port}", options)
        return self._channel

    async def _close(self) -> None:
        if self._channel is not None:
            await self._channel.close()


def _compare(data: bytes, expected: np.ndarray[Any, Any]) -> Outcome:
    answer = np.frombuffer(ModelInferResponse.FromString(data).raw_output_contents[0], np.float32)
    difference = float(np.abs(answer - expected[0]).max())
    if difference > TOLERANCE:
        return Outcome(Kind.MISMATCHED, f"an answer differs by {difference:.2e}")
    return Outcome(Kind.ANSWERED)


def _judge_status(error: grpc.aio.AioRpcError) -> Outcome:
    is_closed = error.details() == _CLOSED_CHANNEL
    if is_closed or error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return Outcome(Kind.REFUSED, _DOWN)
    return Outcome(Kind.FAILED, f"{error.code().name}: {(error.details() or '')[:160]}")


def _judge_error(message: str) -> Outcome:
    if any(text in message for text in _DEATHS):
        return Outcome(Kind.REFUSED, _WORKER_DIED)
    if "stop" in message.lower():
        return Outcome(Kind.REFUSED, _DOWN)
    return Outcome(Kind.FAILED, message[:160])
