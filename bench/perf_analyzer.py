"""Runs Triton's perf_analyzer against the demo's model Op, and checks the server figures that it reports.

It covers both protocols, tensors in the request and in shared memory, and 1 to 4 requests at once.
perf_analyzer reports differences of our statistics over its windows. They must agree with its own counts and
times, and the statistics must agree with /metrics.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.load import CannotMeasure
from bench.running import ROOT, default_config, running_service
from tests.support.service_process import ServiceProcess

MODEL = "bert_model"
FEEDS = ("input_ids", "token_type_ids", "attention_mask")
LENGTH = 16  # tokens of each row
LEVELS = 4
TRIALS = 3
FOLDER = Path(sys.prefix) / "perf_analyzer"
_PATIENCE_S = 600
EXAMPLES = """examples:
  python -m bench.perf_analyzer
  python -m bench.perf_analyzer --window 5000
"""


class Level(NamedTuple):
    """Results at one concurrency.

    Latencies in us: perf_analyzer's own, and the server's from our statistics.
    """

    concurrency: int
    sent: int
    per_s: float
    latency_us: int
    counted: int
    executions: int
    server_us: int
    queue_us: int
    input_us: int
    infer_us: int
    output_us: int

    def flaws(self) -> Iterator[str]:
        """Yield contradictions in the server's figures. At the edges of a window requests are in flight."""
        most_apart = 2 * TRIALS * self.concurrency
        if abs(self.sent - self.counted) > most_apart:
            yield f"{self.sent} requests sent and {self.counted} counted"
        if not 0 < self.executions <= self.counted + most_apart:
            yield f"{self.executions} executions of {self.counted} requests"
        parts = self.queue_us + self.input_us + self.infer_us + self.output_us
        if not 0 < self.infer_us <= parts <= self.server_us * 1.01 + 4 or self.server_us > self.latency_us:
            yield f"{parts} us of {self.server_us} us in the server, of {self.latency_us} us for the client"


_REPORT = re.compile(
    r"Request count: (?P<sent>\d+)\s+Throughput: (?P<per_s>[\d.]+) infer/sec"
    r".*?Avg latency: (?P<latency_us>\d+) usec"
    r".*?Inference count: (?P<counted>\d+)\s+Execution count: (?P<executions>\d+)"
    r".*?Avg request latency: (?P<server_us>\d+) usec \(overhead \d+ usec \+ queue (?P<queue_us>\d+) usec"
    r" \+ compute input (?P<input_us>\d+) usec \+ compute infer (?P<infer_us>\d+) usec"
    r" \+ compute output (?P<output_us>\d+) usec\)",
    re.DOTALL,
)


def levels_in(report: str) -> list[Level]:
    """Parse perf_analyzer's printed report: one level for each concurrency."""
    levels = []
    for part in report.split("Request concurrency: ")[1:]:
        found = _REPORT.search(part)
        if found is not None:
            numbers = {name: float(value) for name, value in found.groupdict().items()}
            per_s = numbers.pop("per_s")
            counts = {name: int(value) for name, value in numbers.items()}
            levels.append(Level(concurrency=int(part.split()[0]), per_s=per_s, **counts))
    return levels


class Analyzer:
    """The program that docker/install.sh installs, with the libraries it needs."""

    def __init__(self) -> None:
        self.program = FOLDER / "bin" / "perf_analyzer"
        known = os.environ.get("LD_LIBRARY_PATH", "")
        libraries = [FOLDER, FOLDER / "nvidia" / "cuda_runtime" / "lib", known]
        self.env = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, filter(None, libraries)))}
        if not self.program.is_file():
            raise CannotMeasure(f"{self.program} is not there; run `docker/install.sh dev {sys.prefix}`")
        loads = subprocess.run([self.program, "--version"], env=self.env, capture_output=True, text=True)
        if loads.returncode:
            raise CannotMeasure(loads.stderr.strip())

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run perf_analyzer once, whatever its exit status."""
        command = [str(self.program), *options]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=_PATIENCE_S)

    def levels(self, address: str, window_ms: int, *options: str) -> list[Level]:
        """Run perf_analyzer once. Raises CannotMeasure if it reports nothing for a concurrency."""
        arguments = ["-m", MODEL, "-u", address, "--concurrency-range", f"1:{LEVELS}"]
        arguments += ["--measurement-interval", str(window_ms)]
        # Each level has its windows, stable or not: only the counts are compared.
        arguments += ["--stability-percentage", "999", "--max-trials", str(TRIALS), "--input-data", "zero"]
        for feed in FEEDS:
            arguments += ["--shape", f"{feed}:{LENGTH}"]
        done = self.run(*arguments, *options)
        levels = levels_in(done.stdout)
        if [level.concurrency for level in levels] != list(range(1, LEVELS + 1)):
            raise CannotMeasure(f"perf_analyzer left with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return levels


def statistics(service: ServiceProcess) -> int:
    """Return the number of requests that the model Op has answered, from KServe v2's statistics."""
    with urllib.request.urlopen(f"{service.url}/v2/models/{MODEL}/stats") as answer:
        (model,) = json.load(answer)["model_stats"]
    count: int = model["inference_stats"]["success"]["count"]
    return count


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--window", type=int, default=2000, help="ms at a time (default: %(default)s)")
    options = parser.parse_args()
    console = Console()
    try:
        return measure(Analyzer(), options.window, console)
    except CannotMeasure as exc:
        console.print(str(exc), style="red", markup=False)
        return 2


def measure(analyzer: Analyzer, window_ms: int, console: Console) -> int:
    """Return 0 if all figures are consistent, else 1."""
    table = Table("", "by", "sent", "counted", "batches", "1/s", "us", "server", "infer")
    flaws: list[str] = []
    with running_service(ROOT / "web_service.py", default_config(1)) as service:
        for protocol, memory in itertools.product(("grpc", "http"), ("none", "system")):
            how = protocol if memory == "none" else f"{protocol} shm"
            levels, found = examine(analyzer, service, window_ms, protocol, memory)
            for level in levels:
                numbers = (level.concurrency, level.sent, level.counted, level.executions, level.per_s)
                times = level.latency_us, level.server_us, level.infer_us
                table.add_row(how, *(f"{number:,.0f}" for number in numbers + times))
            flaws += [f"{how}, {flaw}" for flaw in found]
    console.print(table)
    for flaw in flaws:
        console.print(flaw, style="red", markup=False)
    return 1 if flaws else 0


def examine(
    analyzer: Analyzer, service: ServiceProcess, window_ms: int, protocol: str, memory: str = "none"
) -> tuple[list[Level], list[str]]:
    """Run perf_analyzer over "grpc" or "http". Return its levels, and the contradictions in its report.

    window_ms: length of a measurement window. memory: "none" or "system", for tensors in shared memory.
    """
    address = service.rpc_address if protocol == "grpc" else service.url.removeprefix("http://")
    before = statistics(service), service.answered().get("ok", 0)
    levels = analyzer.levels(address, window_ms, "-i", protocol, "--shared-memory", memory)
    flaws = [f"{level.concurrency} at once: {flaw}" for level in levels for flaw in level.flaws()]
    after = statistics(service), service.answered().get("ok", 0)
    if after[0] - before[0] != after[1] - before[1]:
        flaws.append(f"{after[0] - before[0]} requests by statistics, by /metrics {after[1] - before[1]}")
    return levels, flaws


if __name__ == "__main__":
    sys.exit(main())
