"""Latency of /health/live while 20 clients fetch 1 x 128 x 768 floats over key/value.

The front must stay responsive: the target is a p99 within twice the idle one plus 5 ms, both of the same run.
The model is that of the tests.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.load import CannotMeasure, Load, bodies_file, wrk
from bench.running import ROOT, running_service
from tests.support.models import hidden_states
from tests.support.service_process import ServiceProcess

PATH = "/hidden/prediction"
BODY = b'{"key": ["token"], "value": ["7"]}'
ADDED_MS = 5.0
PROBE_EVERY_MS = 5
FACTOR = 2.0


def probe(service: ServiceProcess, seconds: float) -> Load:
    """Ask /health/live every few milliseconds on one connection. More probes would be the load itself."""
    return wrk(service.url, "/health/live", connections=1, seconds=seconds, delay_ms=PROBE_EVERY_MS)


def measure(service: ServiceProcess, seconds: float, clients: int) -> tuple[Load, Load, Load]:
    """Return the probes while idle, the probes under load, and the load itself."""
    idle = probe(service, seconds)
    with bodies_file([BODY]) as bodies, ThreadPoolExecutor(1) as pool:
        load = pool.submit(
            wrk, service.url, PATH, connections=clients, seconds=seconds + 1, bodies=bodies, timeout_s=60
        )
        loaded = probe(service, seconds)
        return idle, loaded, load.result()


def _config(model: Path, instances: int) -> dict[str, object]:
    local = {"model_config": str(model), "device_type": 0, "thread_num": 1}
    op = {"concurrency": instances, "batch_size": 8, "local_service_conf": local}
    return {"op": {"hidden": op}, "dag": {"http_errors": "status"}}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.large_answer", description=__doc__,
        epilog="example: python -m bench.large_answer --clients 40",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=10, help="of each probing (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--instances", type=int, default=2, help="workers (default: %(default)s)")
    options = parser.parse_args()
    console = Console()
    try:
        with contextlib.ExitStack() as stack, Progress(console=console, transient=True) as progress:
            progress.add_task("probing", total=None)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="model-")))
            config = _config(hidden_states(folder), options.instances)
            service = stack.enter_context(
                running_service(ROOT / "bench" / "hidden_states_service.py", config)
            )
            answer_mb = len(service.http(PATH, BODY).body) / 1e6
            idle, loaded, load = measure(service, options.seconds, options.clients)
    except CannotMeasure as exc:
        console.print(f"not measured: {exc}", style="red", markup=False)
        return 1
    table = Table("/health/live", "probes", "p50 ms", "p90", "p99", "errors")
    for name, seen in (("idle", idle), ("loaded", loaded)):
        row = (f"{seen.p50_ms:.3f}", f"{seen.p90_ms:.3f}", f"{seen.p99_ms:.3f}", str(seen.errors))
        table.add_row(name, str(seen.requests), *row)
    console.print(table)
    console.print(
        f"the load: {load.requests} answers of {answer_mb:.2f} MB, {load.per_s:.1f}/s, "
        f"p50 {load.p50_ms:.0f} ms, errors {load.errors}"
    )
    bound = FACTOR * idle.p99_ms + ADDED_MS
    verdict = "[green]PASS[/]" if loaded.p99_ms <= bound else "[red]OVER TARGET[/]"
    console.print(f"p99 loaded {loaded.p99_ms:.2f} ms; target 2x idle + 5 ms = {bound:.2f} ms: {verdict}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
