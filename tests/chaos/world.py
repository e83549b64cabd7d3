"""The service under test: its process, its workers, and whether it is meant to be there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from bench.load import CannotMeasure
from bench.processes import children, resident_mb
from bench.running import ROOT, free_ports

START_S = 120.0
SAMPLES = 50
_POLL_S = 0.05


class World:
    """Starts and restarts the service; `service` is an async context for the time that it is served.

    folder: has its configuration. away: whether calls may find nobody: from SIGTERM until the next service
    is ready. broken: what the service itself did that it must not.
    """

    def __init__(self, script: Path, config: Mapping[str, Any], folder: Path) -> None:
        self.http_port, self.rpc_port = free_ports(2)
        self.away = False
        self.broken: list[str] = []
        ports = {"http_port": self.http_port, "rpc_port": self.rpc_port}
        file = folder / "config.yml"
        file.write_text(yaml.safe_dump({**config, **ports}))
        self.folder = folder
        self._log = folder / "log"
        self._command = [sys.executable, str(script), "--config", str(file)]

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        """Ready on entry; on exit stopped, which has to end well. Raises CannotMeasure."""
        self._start()
        try:
            await self.until_ready()
            yield
            await self._stop()
        finally:
            self._process.kill()
            self._process.wait()

    @property
    def front(self) -> int:
        return self._process.pid

    def workers(self) -> list[int]:
        return children(self.front)

    async def resident(self) -> dict[str, float]:
        """MB by process: the median over a second, for a large batch has its memory only while it runs."""
        samples: dict[str, list[float]] = {}
        for _ in range(SAMPLES):
            for name, mb in self._resident().items():
                samples.setdefault(name, []).append(mb)
            await asyncio.sleep(1 / SAMPLES)
        return {name: median(values) for name, values in samples.items()}

    def _resident(self) -> dict[str, float]:
        workers = {f"worker {number}": resident_mb(pid) for number, pid in enumerate(self.workers())}
        return {"front": resident_mb(self.front), **workers}

    async def until_ready(self) -> None:
        """Return when every instance is ready. Raises CannotMeasure when it takes too long."""
        until = time.monotonic() + START_S
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(OSError, ValueError):
                ops = json.loads(await asyncio.to_thread(self._ask, "/health/ready"))["ops"].values()
                if all(op["ready"] == op["instances"] for op in ops):
                    return
            await asyncio.sleep(_POLL_S)
        raise CannotMeasure(f"the service is not ready:\n{self.log_tail()}")

    async def until_replaced(self, worker: int) -> None:
        """Return when the worker is gone and all instances are ready again."""
        until = time.monotonic() + START_S
        while worker in self.workers():
            if time.monotonic() > until:
                self.broken.append(f"worker {worker} hung for {START_S:g} s and was not replaced")
                return
            await asyncio.sleep(_POLL_S)
        await self.until_ready()

    async def restart(self) -> None:
        """SIGTERM; when it has ended as it should, the same service again."""
        self.away = True
        await self._stop()
        self._start()
        await self.until_ready()
        await asyncio.sleep(0.5)  # channels reconnect
        self.away = False

    async def reload(self) -> None:
        """Have the model loaded anew; return when all workers are new ones."""
        answer = await asyncio.to_thread(self._ask, "/v2/repository/models/bert/load", b"", START_S)
        if answer:
            self.broken.append(f"the model was not loaded anew: {answer[:200]!r}")
        await self.until_ready()

    async def until_idle(self) -> None:
        """Return when no request is pending; notes those that stay."""
        until = time.monotonic() + START_S
        while (pending := await asyncio.to_thread(self._metric, "paddlewheel_pending_requests")) > 0:
            if time.monotonic() > until:
                self.broken.append(f"{pending:g} requests are still pending, of which nobody waits for one")
                return
            await asyncio.sleep(_POLL_S)

    async def retried(self) -> int:
        """Requests that were tried again because their worker had died, since the service's start."""
        return int(await asyncio.to_thread(self._metric, 'paddlewheel_op_retried_total{op="bert"}'))

    def log_tail(self) -> str:
        return self._log_text()[-4000:]

    def _log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log)

    async def _stop(self) -> None:
        workers = self.workers()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = await asyncio.to_thread(self._process.wait, START_S)
        except subprocess.TimeoutExpired:
            self.broken.append(f"the service did not end in {START_S:g} s after SIGTERM")
            return
        if code:
            self.broken.append(f"the service left with {code} after SIGTERM")
        left = [pid for pid in workers if Path(f"/proc/{pid}").exists()]
        if left:
            self.broken.append(f"workers outlived their service: {left}")

    def _ask(self, path: str, body: bytes | None = None, timeout_s: float = 5) -> bytes:
        """What a GET, or a POST of the body, is answered with, refusals included."""
        url = f"http://127.0.0.1:{self.http_port}{path}"
        try:
            with urllib.request.urlopen(url, body, timeout=timeout_s) as answer:
                content: bytes = answer.read()
        except urllib.error.HTTPError as exc:
            content = exc.read()
        return content

    def _metric(self, sample: str) -> float:
        lines = self._ask("/metrics").decode().splitlines()
        (line,) = (line for line in lines if line.startswith(f"{sample} "))
        return float(line.split()[1])
