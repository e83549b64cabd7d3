"""Compares the engines on one BERT classifier: rows per second, and CPU time per row.

It has two sizes with random weights: the demo's (2 layers of 128) and BERT-base's (12 of 768). Each engine
has a process of its own, and they take turns (bench/bert_models.py makes the models).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.bert_models import NAMES, SIZES, make_models
from convert.demo.headlines import vocabulary
from pipeline.config.config_file import LocalServiceConf
from pipeline.engines import create_predictor
from pipeline.models.serving_model import load_serving_model

SHAPES = tuple((rows, length) for length in (16, 64) for rows in (1, 8, 32))
EXAMPLES = """examples:
  python -m bench.engines
  python -m bench.engines --sizes 12x768 --threads 1 --rounds 5 --models /tmp/models
"""


class Subject(NamedTuple):
    """An engine with its settings. form: the folder of the model, `paddle` or `onnx`."""

    title: str
    form: str
    engine: str
    precision: str


SUBJECTS = (
    Subject("Paddle", "paddle", "paddle", "fp32"),
    Subject("Paddle bf16", "paddle", "paddle", "bf16"),
    Subject("ONNX Runtime", "onnx", "onnxruntime", "fp32"),
    Subject("OpenVINO", "onnx", "openvino", "fp32"),
    Subject("OpenVINO bf16", "onnx", "openvino", "bf16"),
)


class Run(NamedTuple):
    """Results of a run. rows_per_s: by the clock. cpu_ms: per row, of all threads.

    logits: of the first row.
    """

    rows_per_s: float
    cpu_ms: float
    logits: list[float]


def serve(model: Path, engine: str, precision: str, threads: int) -> None:
    """Measure an engine on request: print a line for each line "ROWS LENGTH SECONDS" of standard input."""
    conf = LocalServiceConf(
        thread_num=threads, precision=precision, strict_precision=True, engine=engine, ir_optim=True
    )
    predictor = create_predictor(load_serving_model(model, engine), conf)
    for line in sys.stdin:
        rows, length, seconds = line.split()
        print(json.dumps(_run(predictor, int(rows), int(length), float(seconds))), flush=True)  # noqa: T201


def _run(predictor: Any, rows: int, length: int, seconds: float) -> Run:
    ids = np.random.default_rng(rows * length).integers(1, len(vocabulary()), (rows, length))
    feeds = dict(zip(NAMES, (ids, np.zeros_like(ids), np.ones_like(ids)), strict=True))
    for _ in range(3):
        logits = predictor.run(feeds)["logits"]
    runs, began, cpu_began = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        predictor.run(feeds)
        runs += 1
    took, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    return Run(runs * rows / took, cpu * 1e3 / (runs * rows), logits[0].tolist())


@contextmanager
def served(model: Path, subject: Subject, threads: int) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-m",
        "bench.engines",
        "--serve",
        str(model),
        subject.engine,
        subject.precision,
    ]
    command += ["--threads", str(threads)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        yield process
        process.stdin.close()


def asked(process: subprocess.Popen[str], rows: int, length: int, seconds: float) -> Run | None:
    """Ask a process for one run.

    Return None if it has ended: the engine is missing, or the CPU lacks the precision.
    """
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(f"{rows} {length} {seconds}\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        return None
    return Run(*json.loads(line)) if line else None


def build_table(size: str, folder: Path, options: argparse.Namespace) -> Table:
    title = f"{size}, {options.threads} threads: rows/s (CPU ms of a row)"
    table = Table("", *(f"{rows} x {length}" for rows, length in SHAPES), "largest |diff|", title=title)
    with ExitStack() as stack:
        processes = {
            one: stack.enter_context(served(folder / one.form, one, options.threads)) for one in SUBJECTS
        }
        runs_by_size: dict[tuple[Subject, tuple[int, int]], list[Run]] = {}
        for _ in range(options.rounds):
            for shape in SHAPES:
                for one, process in processes.items():
                    run = asked(process, *shape, options.seconds)
                    if run is not None:
                        runs_by_size.setdefault((one, shape), []).append(run)
    for one in SUBJECTS:
        cells, apart = [], 0.0
        for shape in SHAPES:
            runs = runs_by_size.get((one, shape), [])
            if runs:
                rate, cpu = (statistics.median(values) for values in list(zip(*runs, strict=True))[:2])
                cells.append(f"{rate:,.0f} ({cpu:.2f})")
                difference = np.subtract(runs[0].logits, runs_by_size[SUBJECTS[0], shape][0].logits)
                apart = float(np.maximum(apart, np.abs(difference).max()))  # nan stays
        table.add_row(one.title, *(cells or ["not here"]), f"{apart:.1e}" if cells else "")
    return table


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.engines",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sizes", default=",".join(SIZES), help="of 2x128, 12x768 (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of each engine (default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="turns, of which the median counts (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn (default: %(default)s)")
    parser.add_argument("--models", type=Path, help="folder that keeps the models for the next time")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        model, engine, precision = options.serve
        serve(Path(model), engine, precision, options.threads)
        return 0
    with ExitStack() as stack:
        folder = options.models or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engines-")))
        for size in options.sizes.split(","):
            make_models(folder / size, size)
            Console(width=150).print(build_table(size, folder / size, options))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
