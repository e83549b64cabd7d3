"""Resident memory of front and workers: when they are ready, and after a load over both endpoints."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from bench.instrumented_service import ROOT
from bench.load import CannotMeasure, bodies_file, h2load, wrk
from bench.processes import resident_mb
from bench.running import default_config, running_service
from bench.texts import grpc_body, headlines, http_body
from tests.support.service_process import ServiceProcess

FRONT_LIMIT_MB = 120


def measure(seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    """MB by process, before and after."""
    texts = headlines()
    with (
        bodies_file([http_body(text) for text in texts]) as bodies,
        running_service(ROOT / "web_service.py", default_config()) as service,
    ):
        before = _resident(service)
        wrk(service.url, "/bert/prediction", connections=20, seconds=seconds, bodies=bodies)
        h2load(service.rpc_address, connections=20, seconds=seconds, body=grpc_body(texts[0]))
        return before, _resident(service)


def _resident(service: ServiceProcess) -> dict[str, float]:
    workers = {f"worker {i}": resident_mb(pid) for i, pid in enumerate(service.worker_pids())}
    return {"front": resident_mb(service.process.pid), **workers}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.memory",
        description=__doc__,
        epilog="example: python -m bench.memory --seconds 30",
    )
    parser.add_argument(
        "--seconds", type=float, default=10, help="of load on each endpoint (default: %(default)s)"
    )
    options = parser.parse_args()
    console = Console()
    try:
        before, after = measure(options.seconds)
    except CannotMeasure as exc:
        console.print(f"not measured: {exc}", style="red", markup=False)
        return 1
    table = Table("", "ready", "after load", title="resident memory, MB")
    for name, mb in before.items():
        table.add_row(name, f"{mb:.0f}", f"{after[name]:.0f}")
    console.print(table)
    verdict = "[green]PASS[/]" if after["front"] < FRONT_LIMIT_MB else "[red]OVER TARGET[/]"
    console.print(f"front after load: {after['front']:.0f} MB; target under {FRONT_LIMIT_MB} MB: {verdict}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
