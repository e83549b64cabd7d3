"""Runs `paddlewheel tune` twice on a service, and compares both choices in turns.

python -m bench.tune_twice . --sample texts.txt --budget 2m
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from pipeline.tuning.candidate import Script, opened
from pipeline.tuning.sample import Example, SampleRequest, build_requests, read_sample_lines
from pipeline.tuning.tune import Chosen, Measured, Point

TURNS, ROUND_S, START_S = 5, 4.0, 60.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("service", type=Path)
    parser.add_argument("--sample", type=Path, required=True)
    parser.add_argument("--op", default="bert")
    options, further = parser.parse_known_args()
    config = options.service / "config.yml"
    chosen = [tuned(options.service, options.sample, further) for _ in range(2)]
    rounds: list[list[Point]] = [[], []]
    with opened(options.service / "web_service.py", config, options.op) as script:
        for _ in range(TURNS):
            for choice, points in zip(chosen, rounds, strict=True):
                points.append(point(script, choice, options.sample))
    for choice, points in zip(chosen, rounds, strict=True):
        print(f"{choice.settings.name}, {choice.point.connections} connections")  # noqa: T201
        for figure in ("per_s", "p99_ms", "cpu_ms"):
            values = [getattr(one, figure) for one in points]
            print(f"  {figure}: median {statistics.median(values):.3f} of {values}")  # noqa: T201


def tuned(service: Path, sample: Path, options: list[str]) -> Chosen:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tuned"
        command = [sys.executable, "-m", "pipeline", "tune", service, "--sample", sample, "--dry-run"]
        subprocess.run([*command, "--report", report, *options], check=True, stdout=subprocess.DEVNULL)
        return msgspec.convert(json.loads(report.with_suffix(".json").read_bytes())["chosen"], Chosen)


def point(script: Script, choice: Chosen, sample: Path) -> Point:
    with script.started(choice.settings, time.monotonic() + START_S) as candidate:
        example = Example.of_openapi(json.loads(candidate.get("/openapi.json")[1]))
        requests: list[SampleRequest] = build_requests(
            read_sample_lines(sample), as_texts=sample.suffix == ".txt", example=example
        )
        load = candidate.load(requests, choice.point.connections, ROUND_S, ROUND_S / 4)
    (measured,) = Measured(choice.settings, (load,)).points()
    return measured


if __name__ == "__main__":
    main()
