"""Streams of a decoupled model over gRPC: answers per second, and the time to the first answer.

The model sends 10,000 answers in one stream, and 200 in each of 50 concurrent streams. The time to the first
answer of a stream is compared with a unary call of the same code. With --triton, Triton's Python backend from
PyTriton's wheel serves the same repository, in turns with ours.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
import msgspec
from rich.console import Console
from rich.table import Table

from bench.load import CannotMeasure
from bench.peers.dialects import Answer, Dialect
from bench.peers.environments import environment
from bench.peers.peer_server import activated
from bench.peers.server import Endpoint, running
from bench.running import free_ports
from client.protos.kserve_v2_pb2 import ModelInferRequest, ModelInferResponse
from tests.support.answer_streams import open_stream, request
from tests.support.repository_process import RepositoryProcess
from tests.support.triton_repository import write_model

EXAMPLES = """examples:
  python -m bench.streams
  python -m bench.streams --triton --rounds 5
"""
ANSWERS, STREAMS, FIRSTS = 10_000, 50, 300
_TENSORS = """
backend: "python"
input { name: "X" data_type: TYPE_STRING dims: 1 }
output { name: "Y" data_type: TYPE_STRING dims: 1 }
"""
_DECOUPLED = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, text = request.get_response_sender(), request.inputs()[0].as_numpy()
            for _ in range(int(text[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", text)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_UNARY = """
class TritonPythonModel:
    def execute(self, requests):
        texts = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", text)]) for text in texts]
"""


def count_answers(channel: grpc.Channel, answers: int) -> int:
    """Read a stream of answers to its end. Return their number."""
    return sum(1 for _ in open_stream(channel, [request("many", str(answers))]))


def time_first_answer(channel: grpc.Channel) -> float:
    """Return the seconds from the call to the first answer of a stream."""
    began = time.perf_counter()
    call = open_stream(channel, [request("many", "1")])
    next(call)
    took_s = time.perf_counter() - began
    list(call)
    return took_s


def time_unary(channel: grpc.Channel) -> float:
    """Return the seconds of a unary call."""
    method = channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        ModelInferRequest.SerializeToString,
        ModelInferResponse.FromString,
    )
    began = time.perf_counter()
    method(request("one", "1"))
    return time.perf_counter() - began


class Figures(NamedTuple):
    """Results of one server in one round."""

    one_per_s: float  # answers per second of one stream
    many_per_s: float  # answers per second of all concurrent streams
    first_ms: float  # median time to the first answer of a stream
    unary_ms: float  # median time of a unary call


def measure(channel: grpc.Channel) -> Figures:
    """Measure a server that has both models."""
    count_answers(channel, 100)
    began = time.perf_counter()
    assert count_answers(channel, ANSWERS) == ANSWERS
    one_s = time.perf_counter() - began
    began = time.perf_counter()
    with ThreadPoolExecutor(STREAMS) as clients:
        counts = list(clients.map(lambda _: count_answers(channel, ANSWERS // STREAMS), range(STREAMS)))
    many_s = time.perf_counter() - began
    assert sum(counts) == ANSWERS
    first_s, unary_s = (
        statistics.median(timed(channel) for _ in range(FIRSTS)) for timed in (time_first_answer, time_unary)
    )
    return Figures(ANSWERS / one_s, ANSWERS / many_s, 1000 * first_s, 1000 * unary_s)


@contextmanager
def running_triton(repository: Path) -> Iterator[grpc.Channel]:
    """Run Triton with this repository. Yield a channel to it. Raises CannotMeasure if it does not start."""
    venv = environment("triton")
    http_port, grpc_port = free_ports(2)
    command = [str(venv / "bin" / "python"), "-m", "bench.peers.apps.triton_app"]
    command += [str(http_port), str(repository), str(grpc_port)]
    endpoint = Endpoint(http_port, "/v2/models/one/infer", Dialect(_body, _answer))
    with (
        running(command, endpoint, activated(venv), "1"),
        grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel,
    ):
        yield channel


def _body(text: str) -> bytes:
    tensor = {"name": "X", "datatype": "BYTES", "shape": [1], "data": [text]}
    return msgspec.json.encode({"inputs": [tensor]})


def _answer(content: bytes) -> Answer:
    (output,) = msgspec.json.decode(content)["outputs"]
    return Answer(*output["data"], confidence=1.0)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.streams", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--triton", action="store_true", help="compare with Triton's Python backend")
    parser.add_argument("--rounds", type=int, default=3, help="of each server, in turns (%(default)s)")
    options, console = parser.parse_args(), Console()
    table = Table("server", "1 stream, answers/s", f"{STREAMS} streams", "first answer ms", "unary call ms")
    with contextlib.ExitStack() as stack:
        repository = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_model(
            repository, "many", f"{_TENSORS}model_transaction_policy {{ decoupled: true }}\n", _DECOUPLED
        )
        write_model(repository, "one", _TENSORS, _UNARY)
        service = stack.enter_context(RepositoryProcess(repository))
        channels = {"Paddlewheel": stack.enter_context(service.channel())}
        try:
            if options.triton:
                channels["Triton, Python backend"] = stack.enter_context(running_triton(repository))
        except CannotMeasure as exc:
            console.print(f"[red]{exc}[/red]")
            return 1
        rounds = [
            {name: measure(channel) for name, channel in channels.items()} for _ in range(options.rounds)
        ]
    for name in channels:
        medians = Figures(*map(statistics.median, zip(*(figures[name] for figures in rounds), strict=True)))
        table.add_row(
            name, f"{medians.one_per_s:,.0f}", f"{medians.many_per_s:,.0f}",
            f"{medians.first_ms:.2f}", f"{medians.unary_ms:.2f}",
        )  # fmt: skip
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
