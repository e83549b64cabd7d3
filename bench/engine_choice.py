"""Loads the default service, with engine and batch on `auto`, in turns with other settings.

The services run side by side. wrk loads one at a time with headlines. CPU is user and system time of front
and workers per request. On a host with other work, only CPU and ratios of requests per second count.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections import defaultdict
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.instrumented_service import ROOT
from bench.load import bodies_file, wrk
from bench.running import ServiceCpu, default_config, running_service
from bench.texts import headlines, http_body, mixed_lengths

AUTO = "auto"
SETTINGS: dict[str, dict[str, Any]] = {
    AUTO: {},
    "auto, a process each": {"threads": False},
    "engine paddle, batch 32": {"engine": "paddle", "batch_size": 32},
    "engine onnxruntime, batch 32": {"engine": "onnxruntime", "batch_size": 32},
    "engine onnxruntime, batch 8": {"engine": "onnxruntime", "batch_size": 8},
}
EXAMPLES = """examples:
  python -m bench.engine_choice
  python -m bench.engine_choice --connections 1 20 64 --rounds 5 --mixed   texts of 5 to 400 characters
"""


def build_config(setting: dict[str, Any]) -> dict[str, Any]:
    """Return the default service's configuration with other values."""
    config = default_config()
    section = config["op"]["bert"]
    conf = section["local_service_conf"]
    config["dag"]["is_thread_op"] = setting.get("threads", config["dag"].get("is_thread_op", True))
    conf["engine"] = setting.get("engine", conf.get("engine"))
    section["batch_size"] = setting.get("batch_size", section["batch_size"])
    return config


def main() -> None:
    """Print a table of medians, with each setting's ratio to `auto`."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 20, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--mixed", action="store_true", help="texts of 5 to 400 characters, not headlines")
    options = parser.parse_args()
    texts = mixed_lengths() if options.mixed else headlines()
    results: dict[tuple[str, int], list[tuple[float, float, float, float]]] = defaultdict(list)
    with contextlib.ExitStack() as stack, Progress(console=Console(stderr=True)) as progress:
        bodies = stack.enter_context(bodies_file([http_body(text) for text in texts]))
        services = {
            name: stack.enter_context(running_service(ROOT / "web_service.py", build_config(setting)))
            for name, setting in SETTINGS.items()
        }
        steps = [(n, c) for _ in range(options.rounds) for c in options.connections for n in services]
        for name, connections in progress.track(steps, description="Loading"):
            service = services[name]
            cpu = ServiceCpu(service)
            before = sum(cpu.so_far_s())
            load = wrk(
                service.url,
                "/bert/prediction",
                connections=connections,
                seconds=options.seconds,
                bodies=bodies,
            )
            cpu_ms = (sum(cpu.so_far_s()) - before) * 1e3 / load.requests
            results[name, connections].append((load.per_s, load.p50_ms, load.p99_ms, cpu_ms))
    table = Table("setting", "connections", "req/s", "of auto", "p50 ms", "p99 ms", "CPU ms", "of auto")
    for connections in options.connections:
        auto = results[AUTO, connections]
        for name in SETTINGS:
            rounds = results[name, connections]
            per_s, p50, p99, cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
            speed = statistics.median(a[0] / b[0] for a, b in zip(rounds, auto, strict=True))
            cost = statistics.median(a[3] / b[3] for a, b in zip(rounds, auto, strict=True))
            table.add_row(
                name, str(connections), f"{per_s:.0f}", f"{speed:.2f}", f"{p50:.2f}", f"{p99:.1f}",
                f"{cpu:.3f}", f"{cost:.2f}",
            )  # fmt: skip
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
