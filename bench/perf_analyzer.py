"""Runs Triton's perf_analyzer against the demo's model Op, and checks what it reports of the server.

Both protocols, tensors sent and in shared memory, 1 to 4 requests at once. It reports the differences of our
statistics over its windows; they are true when they agree with what it counted and timed itself, and when the
statistics agree with /metrics.
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
    """One concurrency. Latencies in us, as perf_analyzer tells them: its own, and the server's by ours."""

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
        """Where the server's figures can't be true. At the edges of its windows requests are under way."""
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
    """Of perf_analyzer's printed report, one for each concurrency."""
    levels = []
    for part in report.split("Request concurrency: ")[1:]:
        found = _REPORT.search(part)
        if found is not None:
            numbers = {name: float(value) for name, value in found.groupdict().items()}
            per_s = numbers.pop("per_s")
            whole = {name: int(value) for name, value in numbers.items()}
            levels.append(Level(concurrency=int(part.split()[0]), per_s=per_s, **whole))
    return levels


class Analyzer:
    """The program as docker/install.sh puts it beside the tools, with the libraries it needs."""

    def __init__(self) -> None:
        self._program = FOLDER / "bin" / "perf_analyzer"
        known = os.environ.get("LD_LIBRARY_PATH", "")
        libraries = [FOLDER, FOLDER / "nvidia" / "cuda_runtime" / "lib", known]
        self._env = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, filter(None, libraries)))}
        if not self._program.is_file():
            raise CannotMeasure(f"{self._program} is not there; run `docker/install.sh dev {sys.prefix}`")
        loads = subprocess.run([self._program, "--version"], env=self._env, capture_output=True, text=True)
        if loads.returncode:
            raise CannotMeasure(loads.stderr.strip())

    def levels(self, address: str, window_ms: int, *options: str) -> list[Level]:
        """Raises CannotMeasure where it gave no figures for a concurrency."""
        command = [str(self._program), "-m", MODEL, "-u", address, "--concurrency-range", f"1:{LEVELS}"]
        command += ["--measurement-interval", str(window_ms)]
        # Stable or not, each level has its windows: what is looked at is whose count is right.
        command += ["--stability-percentage", "999", "--max-trials", str(TRIALS), "--input-data", "zero"]
        for feed in FEEDS:
            command += ["--shape", f"{feed}:{LENGTH}"]
        done = subprocess.run(
            [*command, *options], env=self._env, capture_output=True, text=True, timeout=_PATIENCE_S
        )
        levels = levels_in(done.stdout)
        if [level.concurrency for level in levels] != list(range(1, LEVELS + 1)):
            raise CannotMeasure(f"perf_analyzer left with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return levels


def statistics(service: ServiceProcess) -> int:
    """Requests that the model Op has answered, as KServe v2 tells it."""
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
    """0 when all figures are true, 1 when some are not."""
    table = Table("", "by", "sent", "counted", "batches", "1/s", "us", "server", "infer")
    flaws: list[str] = []
    with running_service(ROOT / "web_service.py", default_config(1)) as service:
        for protocol, memory in itertools.product(("grpc", "http"), ("none", "system")):
            how = protocol if memory == "none" else f"{protocol} shm"
            levels, found = examine(analyzer, service, window_ms, protocol, memory)
            for level in levels:
                told = (level.concurrency, level.sent, level.counted, level.executions, level.per_s)
                times = level.latency_us, level.server_us, level.infer_us
                table.add_row(how, *(f"{number:,.0f}" for number in told + times))
            flaws += [f"{how}, {flaw}" for flaw in found]
    console.print(table)
    for flaw in flaws:
        console.print(flaw, style="red", markup=False)
    return 1 if flaws else 0


def examine(
    analyzer: Analyzer, service: ServiceProcess, window_ms: int, protocol: str, memory: str = "none"
) -> tuple[list[Level], list[str]]:
    """One run of it over "grpc" or "http", and what can't be true in its report and in our statistics.

    window_ms: what it measures at a time. memory: "none" or "system", for tensors in shared memory.
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
