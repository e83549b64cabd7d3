"""The baselines as processes that run beside the service, and are idle until they are measured."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

from bench.figures import Figures
from bench.load import CannotMeasure
from bench.running import DEMO_MODEL, ROOT, free_ports, stop
from pipeline.process.environment import MODEL_PROCESS

_START_S = 30.0


class BarePredictorProcess:
    """`python -m bench.bare_predictor`, measured on request."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def measure(self, batch: int, seconds: float) -> Figures:
        """`batch` texts a call for `seconds`. CPU is per text, all of it inside; latencies are of a call."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{batch} {seconds}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise CannotMeasure(f"the bare predictor left with {self._process.wait()}")
        figures = json.loads(line)
        return Figures(
            figures["per_s"], figures["p50_ms"], figures["p90_ms"], figures["p99_ms"], 0, figures["cpu_ms"],
            inside_ms=figures["cpu_ms"], texts_per_run=batch,
        )  # fmt: skip


@contextlib.contextmanager
def bare_predictor() -> Iterator[BarePredictorProcess]:
    """Start the default service's tokenizer and predictor in a process without a server."""
    command = [sys.executable, "-m", "bench.bare_predictor", str(DEMO_MODEL), str(ROOT / "config.yml")]
    env = {**MODEL_PROCESS, **os.environ}  # the environment of workers, so that only the service differs
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield BarePredictorProcess(process)
    finally:
        stop(process)


@contextlib.contextmanager
def bare_asgi(answer_bytes: int) -> Iterator[tuple[str, int]]:
    """Start `bench.bare_asgi`, and yield its URL and process id."""
    with _server("bench.bare_asgi", str(answer_bytes)) as server:
        yield server


@contextlib.contextmanager
def bare_pipeline() -> Iterator[tuple[str, int]]:
    """Start `bench.bare_pipeline`, and yield its URL and process id. Its worker is its child."""
    with _server("bench.bare_pipeline", str(DEMO_MODEL), str(ROOT / "config.yml")) as server:
        yield server


@contextlib.contextmanager
def _server(module: str, *arguments: str) -> Iterator[tuple[str, int]]:
    """Start a module that serves HTTP, with the port as its first argument. Yield URL and process id."""
    (port,) = free_ports(1)
    process = subprocess.Popen([sys.executable, "-m", module, str(port), *arguments], cwd=ROOT)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url, process)
        yield url, process.pid
    finally:
        stop(process)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1):
            return
        time.sleep(0.05)
    raise CannotMeasure(f"nothing has answered at {url}")
