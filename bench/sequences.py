"""Many sequences with declared state under faults; each answer is compared with the model run alone."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime

from client.endpoints import V2_METHOD_PATH
from client.protos.kserve_v2_pb2 import ModelInferRequest, ModelInferResponse
from tests.support.repository_process import RepositoryProcess
from tests.support.sequence_models import MEMORY, WIDTH, write_memory
from tests.support.service_process import ServiceProcess, wait_until

EXAMPLES = """examples:
  python -m bench.sequences                                a million sequences, 100 kills
  python -m bench.sequences --sequences 50000 --kills 20
"""
TOLERANCE = 1e-5
MAX_REQUESTS = 3  # of a sequence; 2 on average
CANCELLED, TIMED_OUT, ABANDONED = 0.02, 0.02, 0.02  # shares of the requests, and of the sequences
SHORT_S = 0.004  # most seconds until a cancel, or of a timeout that is likely to pass
IDLE_S = 10  # longer than a request takes on a machine with much other work
IN_TIME = (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
REFUSED_IN_TIME = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
State = np.ndarray[Any, np.dtype[np.float32]]


@dataclass
class Plan:
    """How many sequences to send, how many of them at a time, and how often to kill a worker."""

    sequences: int
    kills: int
    at_a_time: int = 64
    seed: int = 1


@dataclass
class Outcome:
    """Counts of requests and sequences, and the largest difference of an answer to the model run alone."""

    requests: int = 0
    answers: int = 0
    cancelled: int = 0
    timed_out: int = 0
    abandoned: int = 0  # sequences that their clients did not end
    kills: int = 0
    expired: int = 0  # sequences that the server has freed
    remaining: int = 0  # live sequences after the expiry
    remaining_bytes: int = 0
    difference: float = 0.0
    errors: list[str] = field(default_factory=list)  # wrong answers and lost sequences
    took_s: float = 0.0


class Reference:
    """The model run alone by ONNX Runtime, one row at a time."""

    def __init__(self, file: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def run(self, row: State, state: State) -> State:
        """Return the next state, which is also the model's answer."""
        (output,) = self._session.run(["OUTPUT"], {"INPUT": row, "STATE": state})
        return np.asarray(output, np.float32)


class Client:
    """Sends sequences one after the other, and judges each answer."""

    def __init__(self, call: Any, reference: Reference, outcome: Outcome, seed: int) -> None:
        self._call = call
        self._reference = reference
        self._outcome = outcome
        self._rng = random.Random(seed)

    async def run(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            await self._send_sequence(number)

    async def _send_sequence(self, number: int) -> None:
        """Send the requests of one sequence.

        A request that was cancelled or timed out may have been answered on the server. The next answer then
        has to fit the state before or after this request.
        """
        rng, zeros = self._rng, np.zeros((1, WIDTH), np.float32)
        count = rng.randint(1, MAX_REQUESTS)
        is_abandoned = rng.random() < ABANDONED
        states: list[State] = []  # states that the server may have; empty: the sequence starts anew
        history: list[str] = []  # for the report of a wrong answer
        for at in range(count):
            row = np.array([[rng.uniform(-1, 1) for _ in range(WIDTH)]], np.float32)
            starts = not states
            ends = at == count - 1 and not is_abandoned
            following = [self._reference.run(row, state) for state in states or [zeros]]
            answer = await self._send(number, row, starts=starts, ends=ends)
            history.append(("START " if starts else "") + ("no answer" if answer is None else "answered"))
            if answer is not None:
                states = self._find_state(f"{number} ({', '.join(history)})", answer, following)
            elif starts:
                states = []  # START again: the server may not know the sequence
            else:
                states += following
        self._outcome.abandoned += is_abandoned

    def _find_state(self, name: str, answer: State, candidates: Sequence[State]) -> list[State]:
        differences = [float(np.abs(answer - candidate).max()) for candidate in candidates]
        difference = min(differences)
        self._outcome.answers += 1
        self._outcome.difference = max(self._outcome.difference, difference)
        if difference > TOLERANCE:
            self._outcome.errors.append(f"sequence {name}: an answer differs by {difference:.2e}")
        return [candidates[differences.index(difference)]]

    async def _send(self, number: int, row: State, *, starts: bool, ends: bool) -> State | None:
        """Return the answer to a request; None if it was cancelled or timed out."""
        chance, outcome = self._rng.random(), self._outcome
        outcome.requests += 1
        timeout_s = self._rng.uniform(0, SHORT_S) if chance < TIMED_OUT else None
        call = self._call(build_message(number, row, starts=starts, ends=ends), timeout=timeout_s)
        if TIMED_OUT <= chance < TIMED_OUT + CANCELLED:
            asyncio.get_running_loop().call_later(self._rng.uniform(0, SHORT_S), call.cancel)
        try:
            response = ModelInferResponse.FromString(await call)
        except asyncio.CancelledError:
            outcome.cancelled += 1
            return None
        except grpc.aio.AioRpcError as exc:
            if exc.code() not in IN_TIME and (timeout_s is None or exc.code() not in REFUSED_IN_TIME):
                outcome.errors.append(f"sequence {number}: {exc.code().name}: {exc.details()}")
            outcome.timed_out += 1
            return None
        return np.frombuffer(response.raw_output_contents[0], np.float32).reshape(1, WIDTH)


def build_message(number: int, row: State, *, starts: bool, ends: bool) -> bytes:
    request = ModelInferRequest(model_name=MEMORY, raw_input_contents=[row.tobytes()])
    request.inputs.add(name="INPUT", datatype="FP32", shape=[1, WIDTH])
    request.parameters["sequence_id"].int64_param = number
    request.parameters["sequence_start"].bool_param = starts
    request.parameters["sequence_end"].bool_param = ends
    return request.SerializeToString()


async def send_all(service: ServiceProcess, plan: Plan, reference: Reference, outcome: Outcome) -> None:
    """Send all sequences, and kill a worker each time a share of them has begun."""
    rest = iter(range(1, plan.sequences + 1))
    begun = itertools.count(1)
    every = plan.sequences // (plan.kills + 1)
    due: asyncio.Queue[int] = asyncio.Queue()

    def draw_numbers() -> Iterator[int]:
        for number in rest:
            if plan.kills and next(begun) % every == 0:
                due.put_nowait(number)
            yield number

    async def kill() -> None:
        while True:
            await due.get()
            if outcome.kills < plan.kills:
                await asyncio.to_thread(service.wait_until_ready, every_instance=True)
                service.kill_worker(outcome.kills % 2)
                outcome.kills += 1
            due.task_done()

    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(service.rpc_address, options) as channel:
        killing = asyncio.create_task(kill())
        call = channel.unary_unary(V2_METHOD_PATH)
        seeds = range(plan.seed * 1000, plan.seed * 1000 + plan.at_a_time)
        await asyncio.gather(*(Client(call, reference, outcome, seed).run(draw_numbers()) for seed in seeds))
        await due.join()
        killing.cancel()


def measure(plan: Plan) -> Outcome:
    """Serve a model with declared state on two instances, and send it sequences under faults."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as work:
        folder = write_memory(Path(work), idle_s=IDLE_S)
        reference = Reference(folder / "1" / "model.onnx")
        with RepositoryProcess(Path(work)) as service:
            service.wait_until_ready(every_instance=True)
            started = time.monotonic()
            asyncio.run(send_all(service, plan, reference, outcome))
            outcome.took_s = time.monotonic() - started
            op = f"{MEMORY}:1"
            wait_until(lambda: service.metric("paddlewheel_sequences", op=op) == 0, "all sequences ended")
            outcome.remaining = int(service.metric("paddlewheel_sequences", op=op))
            outcome.remaining_bytes = int(service.metric("paddlewheel_sequence_bytes", op=op))
            outcome.expired = int(service.metric("paddlewheel_sequences_expired_total", op=op))
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.sequences", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--sequences", type=int, default=1_000_000, help="default: %(default)s")
    parser.add_argument("--kills", type=int, default=100, help="of workers; default: %(default)s")
    parser.add_argument("--at-a-time", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    options = parser.parse_args()
    outcome = measure(Plan(options.sequences, options.kills, options.at_a_time, options.seed))
    sys.stdout.write(
        f"{options.sequences} sequences, {outcome.requests} requests in {outcome.took_s:.0f} s "
        f"({outcome.requests / outcome.took_s:.0f} /s)\n"
        f"{outcome.answers} answers, largest difference {outcome.difference:.1e}; "
        f"{outcome.cancelled} cancelled, {outcome.timed_out} timed out\n"
        f"{outcome.kills} kills of workers; {outcome.abandoned} sequences without an end, "
        f"{outcome.expired} expired, {outcome.remaining} left with {outcome.remaining_bytes} bytes\n"
    )
    sys.stdout.writelines(f"{error}\n" for error in outcome.errors[:20])
    sys.stdout.write(f"{len(outcome.errors)} wrong answers or lost sequences\n")
    return 1 if outcome.errors or outcome.remaining or outcome.remaining_bytes else 0


if __name__ == "__main__":
    sys.exit(main())
