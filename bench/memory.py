"""Memory of front and workers: when they are ready, and after a load over both endpoints.

Resident memory counts shared pages in each process, proportional memory divides them among the processes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.instrumented_service import ROOT
from bench.load import CannotMeasure, bodies_file, h2load, wrk
from bench.processes import resident_mb
from bench.running import default_config, running_service
from bench.texts import grpc_body, headlines, http_body
from pipeline.process.processes import proportional_bytes
from tests.support.service_process import ServiceProcess

FRONT_LIMIT_MB = 120


class Memory(NamedTuple):
    """Memory of a process in MB."""

    resident: float
    proportional: float

    @classmethod
    def measure(cls, pid: int) -> Memory:
        return cls(resident_mb(pid), proportional_bytes(pid) / 2**20)


Subject = dict[str, Memory]  # by process


def measure(config: dict[str, Any], seconds: float) -> tuple[Subject, Subject]:
    """Return the memory of a service before and after its load."""
    texts = headlines()
    with (
        bodies_file([http_body(text) for text in texts]) as bodies,
        running_service(ROOT / "web_service.py", config) as service,
    ):
        before = _read_memory(service)
        wrk(service.url, "/bert/prediction", connections=20, seconds=seconds, bodies=bodies)
        h2load(service.rpc_address, connections=20, seconds=seconds, body=grpc_body(texts[0]))
        return before, _read_memory(service)


def _read_memory(service: ServiceProcess) -> Subject:
    workers = {f"worker {i}": Memory.measure(pid) for i, pid in enumerate(service.worker_pids())}
    processes = {"front": Memory.measure(service.process.pid), **workers}
    return {**processes, "all": Memory(*map(sum, zip(*processes.values(), strict=True)))}


def build_configs(shards: int, model: Path | None) -> dict[str, dict[str, Any]]:
    """Return the configurations to measure, by title: the demo's, or shards beside as many processes."""
    if shards == 1:
        return {"config.yml": default_config()}
    configs = {}
    for title, count, placement in (("processes", 1, "process"), ("shards", shards, "thread")):
        config = default_config(instances=shards)
        section = config["op"]["bert"]
        section |= {"placement": placement, "batch_size": 8}
        section["local_service_conf"]["engine"] = "onnxruntime"
        if model is not None:
            section["local_service_conf"]["model_config"] = str(model.resolve())
        configs[f"{shards} {title}"] = {**config, "shards": count}
    return configs


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.memory",
        description=__doc__,
        epilog="example: python -m bench.memory --seconds 30",
    )
    parser.add_argument(
        "--seconds", type=float, default=10, help="of load on each endpoint (default: %(default)s)"
    )
    parser.add_argument(
        "--shards", type=int, default=1, help="compare so many shards with as many processes, ONNX Runtime"
    )
    parser.add_argument("--model", type=Path, help="served folder of another model with the demo's feeds")
    options = parser.parse_args()
    console = Console()
    try:
        for title, config in build_configs(options.shards, options.model).items():
            before, after = measure(config, options.seconds)
            table = Table(
                "", "resident, ready", "after load", "proportional, ready", "after load", title=f"{title}, MB"
            )
            for name, at_start in before.items():
                at_end = after[name]
                row = at_start.resident, at_end.resident, at_start.proportional, at_end.proportional
                table.add_row(name, *(f"{mb:.0f}" for mb in row))
            console.print(table)
    except CannotMeasure as exc:
        console.print(f"not measured: {exc}", style="red", markup=False)
        return 1
    front_mb = after["front"].resident
    verdict = "[green]PASS[/]" if front_mb < FRONT_LIMIT_MB else "[red]OVER TARGET[/]"
    console.print(f"front after load: {front_mb:.0f} MB; target under {FRONT_LIMIT_MB} MB: {verdict}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
