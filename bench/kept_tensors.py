"""Compares a run of the demo model with intermediate tensors kept in memory to a run that frees them.

Two predictors in one process take turns, on batches of one length (pipeline/engines/paddle/session.py).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.running import DEMO_MODEL, ROOT
from pipeline.config.config_file import load_config
from pipeline.engines import Predictor, create_predictor
from pipeline.engines.feeds import input_examples
from pipeline.models.serving_model import load_serving_model

LENGTH = 32
BATCHES = (1, 8, 32)
KEPT, GIVEN_BACK = "kept", "given back"


def predictors() -> dict[str, Predictor]:
    """Return both predictors, warmed up."""
    conf = load_config(ROOT / "config.yml").op["bert"].local_service_conf
    assert conf is not None
    both = {name: create_predictor(load_serving_model(DEMO_MODEL), conf) for name in (KEPT, GIVEN_BACK)}
    example = input_examples(both[KEPT], rows=1, length=LENGTH)
    both[KEPT].run(example)
    with mock.patch("pipeline.engines.paddle.session.KEPT_BYTES", 0):
        both[GIVEN_BACK].run(example)
    return both


def measure(predictor: Predictor, feeds: Mapping[str, Any], runs: int) -> tuple[float, float, float]:
    """Return CPU ms of a run, with helping threads, and the median and p99 of its milliseconds."""
    took_ms: list[float] = []
    cpu = time.process_time()
    for _ in range(runs):
        began = time.perf_counter()
        predictor.run(feeds)
        took_ms.append((time.perf_counter() - began) * 1e3)
    cpu_ms = (time.process_time() - cpu) * 1e3 / runs
    return cpu_ms, median(took_ms), float(np.percentile(took_ms, 99))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.kept_tensors", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="default: %(default)s")
    parser.add_argument("--runs", type=int, default=100, help="of a batch in a round (default: %(default)s)")
    options = parser.parse_args()
    console = Console()
    both = predictors()
    got: dict[tuple[int, str], list[tuple[float, float, float]]] = {}
    for _ in track(range(options.rounds), "rounds", console=console, transient=True):
        for rows in BATCHES:
            for name, predictor in both.items():
                feeds = input_examples(predictor, rows=rows, length=LENGTH)
                got.setdefault((rows, name), []).append(measure(predictor, feeds, options.runs))
    table = Table(
        f"rows x {LENGTH} tokens", "tensors", "CPU ms a run", "p50 ms", "p99 ms", "CPU, kept by given back"
    )
    for rows in BATCHES:
        ratios = [
            kept[0] / back[0] for kept, back in zip(got[rows, KEPT], got[rows, GIVEN_BACK], strict=True)
        ]
        for name in both:
            figures = (f"{median(column):.2f}" for column in zip(*got[rows, name], strict=True))
            ratio = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if name == KEPT else ""
            table.add_row(str(rows), name, *figures, ratio)
    console.print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
