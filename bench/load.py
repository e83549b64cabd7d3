"""Load generators in a closed loop: wrk for HTTP, h2load for gRPC."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_SCRIPT = Path(__file__).parent / "rotating_bodies.lua"
_SHORT_SCRIPT = Path(__file__).parent / "short_texts.lua"
_RPC = "baidu.paddle_serving.pipeline_serving.PipelineService/inference"
_GRPC_HEADERS = ("content-type: application/grpc", "te: trailers")
_SUCCEEDED = 1  # fields of a line of h2load's log: start in us, status, time in us
_REMEDY = {"wrk": "wrk", "h2load": "nghttp2-client"}


class CannotMeasure(Exception):
    """Raised when a measurement is impossible. The message has the reason and a hint."""


class Load(NamedTuple):
    """Results of a load generator. Latencies in ms. errors: requests without an answer of status 2xx."""

    requests: int
    seconds: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    errors: int

    @property
    def per_s(self) -> float:
        return self.requests / self.seconds


@contextmanager
def bodies_file(bodies: Sequence[bytes]) -> Iterator[Path]:
    """Write the bodies to a file, one per line, as the script of `wrk` reads them."""
    with tempfile.NamedTemporaryFile(prefix="bodies-") as file:
        file.write(b"\n".join(bodies) + b"\n")
        file.flush()
        yield Path(file.name)


def wrk(
    url: str,
    path: str,
    *,
    connections: int,
    seconds: float,
    bodies: Path | None = None,
    timeout_s: int = 10,
    delay_ms: int = 0,
) -> Load:
    """Post the bodies in turn, or get `path` without bodies. An answer after `timeout_s` is an error.

    delay_ms: pause of each connection before each request.
    """
    env = (
        os.environ
        | {"BENCH_PATH": path, "BENCH_DELAY_MS": str(delay_ms)}
        | ({"BENCH_BODIES": str(bodies)} if bodies else {})
    )
    options = ["-t1", f"-c{connections}", f"-d{_whole(seconds)}s", f"--timeout={timeout_s}s", f"-s{_SCRIPT}"]
    return Load(**_wrk([*options, url], env))


class ShortTexts(NamedTuple):
    """Latencies of the short texts in a mix, in ms. timed: number of short texts. errors: of all texts."""

    timed: int
    p50_ms: float
    p99_ms: float
    errors: int


def wrk_short_texts(
    url: str, path: str, *, connections: int, seconds: float, bodies: Path, short: Path, timeout_s: int = 10
) -> ShortTexts:
    """Post the bodies in turn, and time only the bodies that are also in the file `short`."""
    env = os.environ | {"BENCH_PATH": path, "BENCH_BODIES": str(bodies), "BENCH_SHORT": str(short)}
    env["BENCH_CONNECTIONS"] = str(connections)
    options = [f"-t{connections}", f"-c{connections}", f"-d{_whole(seconds)}s", f"--timeout={timeout_s}s"]
    return ShortTexts(**_wrk([*options, f"-s{_SHORT_SCRIPT}", url], env))


def _wrk(arguments: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """Run wrk, and return the JSON line that its script prints at the end."""
    done = subprocess.run([_tool("wrk"), *arguments], env=env, capture_output=True, text=True, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("JSON ")), None)
    if done.returncode or line is None:
        raise CannotMeasure(f"wrk left with {done.returncode}: {done.stderr or done.stdout}")
    results: dict[str, Any] = json.loads(line.removeprefix("JSON "))
    return results


def h2load(
    address: str,
    *,
    connections: int,
    seconds: float,
    body: bytes,
    path: str = _RPC,
    headers: Sequence[str] = _GRPC_HEADERS,
    http1: bool = False,
    per_s: float | None = None,
) -> Load:
    """Send calls with the same body, one at a time on each connection: h2load supports nothing else.

    per_s: calls per second on all connections together; None: as many as are answered. The defaults are those
    of PipelineService over gRPC, whose body is a framed message.
    """
    with tempfile.TemporaryDirectory(prefix="h2load-") as folder:
        message, log = Path(folder, "message"), Path(folder, "log")
        message.write_bytes(body)
        command = [
            _tool("h2load"), f"-c{connections}", "-m1", "-t1", f"-D{_whole(seconds)}", f"-d{message}",
            f"--log-file={log}", *(f"-H{header}" for header in headers), *(["--h1"] if http1 else []),
            *([f"--rps={max(1, round(per_s / connections))}"] if per_s is not None else []),
            f"http://{address}/{path}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not log.exists():
            raise CannotMeasure(f"h2load left with {done.returncode}: {done.stderr or done.stdout}")
        rows = np.loadtxt(log, dtype=np.int64, ndmin=2)
    if not len(rows):
        raise CannotMeasure(f"h2load finished no call at {address}: {done.stdout}")
    good = (rows[:, _SUCCEEDED] >= 200) & (rows[:, _SUCCEEDED] < 300)
    p50, p90, p99 = np.percentile(rows[:, 2], (50, 90, 99)) / 1e3
    return Load(int(good.sum()), _whole(seconds), float(p50), float(p90), float(p99), int((~good).sum()))


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise CannotMeasure(
            f"{name} is not installed: Debian and Ubuntu have it in the package {_REMEDY[name]}"
        )
    return path


def _whole(seconds: float) -> int:
    """Return whole seconds, which both tools require."""
    return max(1, round(seconds))
