"""CPU of the front per request of KServe v2, compared with key/value and with a bare gRPC server.

An identity service gets tensors of 1 KB and 1 MB over every endpoint. The bare server parses and answers the
same messages. Every round measures every subject in turn, so only ratios within a round count.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

import grpc
import msgspec
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.load import CannotMeasure, Load, h2load
from bench.processes import cpu_s
from bench.running import ROOT, free_ports, running_service, stop
from bench.texts import framed
from client.protos.kserve_v2_pb2 import ModelInferRequest
from client.protos.pipeline_service_pb2 import Request
from tests.support.service_process import ServiceProcess

SIZES = {"1 KB": 1 << 10, "1 MB": 1 << 20}
CONNECTIONS = {"1 KB": 8, "1 MB": 2}
KEY_VALUE, BINARY, JSON, GRPC, BARE = "key/value", "v2 HTTP binary", "v2 HTTP JSON", "v2 gRPC", "bare gRPC"
PACED, PIPELINE = "bare gRPC at v2's rate", "PipelineService gRPC"
FAST = "bare gRPC, FastServer"
BESIDE_BARE = (GRPC, BARE, PACED, FAST)
TARGET = 1.5  # gRPC against the bare server
_INFER = "v2/models/identity/infer"
_PIPELINE_RPC = "baidu.paddle_serving.pipeline_serving.PipelineService/inference"
_RPC = "inference.GRPCInferenceService/ModelInfer"
EXAMPLES = "example: python -m bench.v2 --rounds 5 --size '1 KB'"


class Subject(NamedTuple):
    """A request that h2load sends."""

    path: str
    body: bytes
    headers: tuple[str, ...]
    http1: bool = True


class Figure(NamedTuple):
    """Results of a load. cpu_us: of the front, or of the bare server, per request."""

    per_s: float
    p50_ms: float
    cpu_us: float
    errors: int


Rounds = dict[tuple[str, str], list[Figure]]


def subjects(size: int) -> dict[str, Subject]:
    """Return the same tensor of `size` bytes for each endpoint; for key/value, a text of the same size."""
    array = np.random.default_rng(0).random((1, size // 4), np.float32)
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": list(array.shape)}
    raw = array.tobytes()
    binary = msgspec.json.encode(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": size}}],
            "parameters": {"binary_data_output": True},
        }
    )
    as_json = msgspec.json.encode({"inputs": [{**tensor, "data": array.ravel().tolist()}]})
    text = msgspec.json.encode({"key": ["INPUT0"], "value": ["x" * size]})
    message = ModelInferRequest(model_name="identity", raw_input_contents=[raw])
    message.inputs.add(name="INPUT0", datatype="FP32", shape=array.shape)
    content = "content-type: application/json"
    length = f"inference-header-content-length: {len(binary)}"
    call = Subject(
        _RPC, framed(message.SerializeToString()), ("content-type: application/grpc", "te: trailers"), False
    )
    pipeline = Request(name="identity", method="prediction", key=["INPUT0"], value=["x" * size])
    return {
        KEY_VALUE: Subject("identity/prediction", text, (content,)),
        BINARY: Subject(_INFER, binary + raw, ("content-type: application/octet-stream", length)),
        JSON: Subject(_INFER, as_json, (content,)),
        PIPELINE: call._replace(path=_PIPELINE_RPC, body=framed(pipeline.SerializeToString())),
        GRPC: call,
        BARE: call,
        FAST: call,
        PACED: call,
    }


@contextlib.contextmanager
def bare_grpc(*how: str) -> Iterator[tuple[str, int]]:
    """Start `bench.bare_grpc`, and yield its address and process id."""
    (port,) = free_ports(1)
    process = subprocess.Popen([sys.executable, "-m", "bench.bare_grpc", str(port), *how], cwd=ROOT)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(30)
        yield f"127.0.0.1:{port}", process.pid
    except grpc.FutureTimeoutError:
        raise CannotMeasure("the bare gRPC server did not start") from None
    finally:
        stop(process)


class Bench:
    """The service and the bare servers, running side by side; one at a time is loaded."""

    def __init__(self, options: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self._options = options
        config = {"op": {"op": {"concurrency": 1, "batch_size": 32}}, "dag": {"http_errors": "status"}}
        script = ROOT / "bench" / "identity_service.py"
        self._service: ServiceProcess = stack.enter_context(running_service(script, config))
        bare: tuple[str, int] = stack.enter_context(bare_grpc())
        fast: tuple[str, int] = stack.enter_context(bare_grpc("fast"))
        self._bare = {BARE: bare, PACED: bare, FAST: fast}
        self._rate = 0.0  # of v2 over gRPC, when it was last measured

    def measure(self, name: str, subject: Subject, connections: int) -> Figure:
        address, pid = self._service.url.removeprefix("http://"), self._service.process.pid
        if name in (GRPC, PIPELINE):
            address = self._service.rpc_address
        elif name in self._bare:
            address, pid = self._bare[name]
        per_s = self._rate if name == PACED else None
        self._load(address, subject, connections, self._options.warm_up, per_s)
        refused, began = self._refused(), cpu_s([pid])
        done = self._load(address, subject, connections, self._options.seconds, per_s)
        cpu = cpu_s([pid]) - began
        # gRPC's errors are in trailers, which h2load does not read: the service counts them.
        if name == GRPC:
            self._rate = done.per_s
        errors = max(done.errors, self._refused() - refused)
        return Figure(done.per_s, done.p50_ms, cpu * 1e6 / done.requests, errors)

    def _load(
        self, address: str, subject: Subject, connections: int, seconds: float, per_s: float | None
    ) -> Load:
        return h2load(
            address, connections=connections, seconds=seconds, body=subject.body,
            path=subject.path, headers=subject.headers, http1=subject.http1, per_s=per_s,
        )  # fmt: skip

    def _refused(self) -> int:
        return sum(count for outcome, count in self._service.answered().items() if outcome != "ok")


def measure(options: argparse.Namespace, console: Console) -> Rounds:
    """Measure every subject in every round. Raises CannotMeasure."""
    rounds: Rounds = {}
    with contextlib.ExitStack() as stack, Progress(console=console, transient=True) as progress:
        task = progress.add_task("starting the service and the bare servers", total=None)
        bench = Bench(options, stack)
        subjects_by_size = {size: subjects(SIZES[size]) for size in options.size or SIZES}
        cells = [(size, name) for size, of_size in subjects_by_size.items() for name in of_size]
        progress.update(task, total=options.rounds * len(cells))
        for number in range(options.rounds):
            for size, name in cells:
                progress.update(task, description=f"round {number + 1} of {options.rounds}: {name}, {size}")
                figure = bench.measure(name, subjects_by_size[size][name], CONNECTIONS[size])
                rounds.setdefault((size, name), []).append(figure)
                progress.advance(task)
                time.sleep(options.pause)
    return rounds


def print_rounds(console: Console, rounds: Rounds, title: str) -> None:
    table = Table(title=title, title_justify="left")
    headings = ("requests/s", "p50 ms", "front CPU us", "of key/value", "of bare gRPC", "errors")
    table.add_column("")
    for heading in headings:
        table.add_column(heading, justify="right")
    for (size, name), figures in rounds.items():
        table.add_row(
            f"{name}, {size}",
            f"{median(f.per_s for f in figures):,.0f}",
            f"{median(f.p50_ms for f in figures):.2f}",
            f"{median(f.cpu_us for f in figures):.0f}",
            f"{median(ratios(figures, rounds[size, KEY_VALUE])):.2f}",
            f"{median(ratios(figures, rounds[size, BARE])):.2f}" if name in BESIDE_BARE else "",
            str(sum(f.errors for f in figures)),
        )
    console.print(table)
    for size in {size: None for size, _ in rounds}:
        of_rounds = ratios(rounds[size, GRPC], rounds[size, BARE])
        met = "met" if median(of_rounds) <= TARGET else "not met"
        shown = ", ".join(f"{ratio:.2f}" for ratio in of_rounds)
        paced = median(ratios(rounds[size, GRPC], rounds[size, PACED]))
        console.print(
            f"gRPC, {size}: {median(of_rounds):.2f}x the bare server (rounds {shown}); target {TARGET}: "
            f"{met}; {paced:.2f}x the bare server when it is asked as seldom"
        )


def ratios(figures: list[Figure], others: list[Figure]) -> list[float]:
    """Return the CPU ratio of one subject to another in each round."""
    return [mine.cpu_us / other.cpu_us for mine, other in zip(figures, others, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.v2", description=(__doc__ or "").partition("\n")[0], epilog=EXAMPLES
    )
    parser.add_argument("--size", action="append", choices=SIZES, help="of the tensor (default: each)")
    parser.add_argument("--seconds", type=float, default=4, help="of each load (default: %(default)s)")
    parser.add_argument("--warm-up", type=float, default=2, help="seconds before each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds after each (default: %(default)s)")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 130)
    try:
        rounds = measure(options, console)
    except CannotMeasure as exc:
        console.print(f"not measured: {exc}", style="red", markup=False)
        return 1
    loads = ", ".join(f"{count} connections for {size}" for size, count in CONNECTIONS.items())
    title = f"{loads}, medians of {options.rounds} rounds, {os.cpu_count()} cores"
    print_rounds(console, rounds, title)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
