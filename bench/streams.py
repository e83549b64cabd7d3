"""Streams of a decoupled model over gRPC: answers per second, and the time to the first answer.

    python -m bench.streams

Prints the answers per second of one stream with 10,000, and of 50 concurrent streams with 200 each. Then the
median time to the first answer of a stream, and the median of a unary call of the same model code.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from rich.console import Console

from client.protos.kserve_v2_pb2 import ModelInferRequest, ModelInferResponse
from tests.support.answer_streams import open_stream, request
from tests.support.repository_process import RepositoryProcess
from tests.support.triton_repository import write_model

console = Console()
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


def main() -> None:
    """Serve both models, and print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        write_model(
            repository, "many", f"{_TENSORS}model_transaction_policy {{ decoupled: true }}\n", _DECOUPLED
        )
        write_model(repository, "one", _TENSORS, _UNARY)
        with RepositoryProcess(repository) as service, service.channel() as channel:
            count_answers(channel, 100)
            began = time.perf_counter()
            assert count_answers(channel, ANSWERS) == ANSWERS
            console.print(f"1 stream: {ANSWERS / (time.perf_counter() - began):.0f} answers/s")
            began = time.perf_counter()
            with ThreadPoolExecutor(STREAMS) as clients:
                counts = list(
                    clients.map(lambda _: count_answers(channel, ANSWERS // STREAMS), range(STREAMS))
                )
            assert sum(counts) == ANSWERS
            console.print(f"{STREAMS} streams: {ANSWERS / (time.perf_counter() - began):.0f} answers/s")
            for name, measure in (("first answer", time_first_answer), ("unary call", time_unary)):
                median_s = statistics.median(measure(channel) for _ in range(FIRSTS))
                console.print(f"{name}: {1000 * median_s:.2f} ms")


if __name__ == "__main__":
    main()
