"""CPU of the histograms of queue and compute time, as a share of the CPU that the cheapest request takes.

Every request updates them. They are updated alone first, in a loop. Then a server with the identity model
gets requests over HTTP; the CPU of a request is that of the front and its worker.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from bench.load import CannotMeasure, bodies_file, wrk
from bench.processes import children, cpu_s
from pipeline.front.metrics.metrics import OpFigures
from tests.support.repository_process import RepositoryProcess
from tests.support.triton_repository import write_model

MODEL = """
backend: "identity"
max_batch_size: 16
dynamic_batching { }
input { name: "INPUT0" data_type: TYPE_FP32 dims: 1 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 }
"""
BODY = b'{"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}'
UPDATES = 300_000
CONNECTIONS = 8


def measure_updates() -> float:
    """Return the microseconds of CPU to add one request, which is a batch of its own, to all histograms."""
    figures, chance = OpFigures(), itertools.cycle([0.0003, 0.002, 0.01, 0.04])
    began = time.process_time()
    for _ in range(UPDATES):
        waited_s = next(chance)
        figures.queue_s.observe_all([waited_s])
        figures.predictor_s.observe(waited_s)
        figures.batch_rows.observe(1)
        figures.load_ratio.observe(max(1.0, waited_s / 0.001), 1)
    return (time.process_time() - began) / UPDATES * 1e6


def measure_server_us(service: RepositoryProcess, seconds: float) -> float:
    """Return the microseconds of CPU of front and worker per request. Raises CannotMeasure for errors."""
    pids = [service.process.pid, *children(service.process.pid)]
    before = cpu_s(pids)
    with bodies_file([BODY]) as file:
        load = wrk(
            f"http://127.0.0.1:{service.http_port}", "/v2/models/echo/infer",
            connections=CONNECTIONS, seconds=seconds, bodies=file,
        )  # fmt: skip
    if load.errors:
        raise CannotMeasure(f"{load.errors} of {load.requests} requests failed")
    return (cpu_s(pids) - before) / load.requests * 1e6


def measure_requests(seconds: float) -> float:
    """Return the microseconds of CPU of a request. Raises CannotMeasure for failed requests."""
    with tempfile.TemporaryDirectory() as folder:
        (write_model(Path(folder), "echo", MODEL) / "1").mkdir(exist_ok=True)
        with RepositoryProcess(Path(folder)) as service:
            return measure_server_us(service, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.histograms", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of the load (%(default)s)")
    options, console = parser.parse_args(), Console()
    try:
        updates_us, request_us = measure_updates(), measure_requests(options.seconds)
    except CannotMeasure as exc:
        console.print(f"[red]{exc}[/red]")
        return 1
    console.print(
        f"CPU of the histograms: {updates_us:.2f} us a request; of a whole request of the identity model: "
        f"{request_us:.0f} us"
    )
    console.print(f"share: {updates_us / request_us:.2%} (goal 1 %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
