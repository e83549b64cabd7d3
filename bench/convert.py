"""Converts large encoders of PaddleNLP, PyTorch and ONNX, and serves them: time, memory, parity."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from bench.processes import children, resident_mb
from convert.proof.parity import TOLERANCE
from convert.steps.isolation import run_isolated

SEQUENCE, TOKEN = "ForSequenceClassification", "ForTokenClassification"
BASE = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "num_labels": 3,
}  # fmt: skip
BERT = BASE | {"vocab_size": 21128, "max_position_embeddings": 512, "type_vocab_size": 2}
ERNIE = BASE | {
    "vocab_size": 40000, "num_hidden_layers": 6, "max_position_embeddings": 2048, "type_vocab_size": 4,
    "use_task_id": True, "task_type_vocab_size": 16,
}  # fmt: skip
ROBERTA = BASE | {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "BERT-base": ("Bert", SEQUENCE, BERT),
    "ERNIE-3.0-medium": ("Ernie", SEQUENCE, ERNIE),
    "ERNIE-3.0-medium-tokens": ("Ernie", TOKEN, ERNIE),
    "RoBERTa-base": ("Roberta", SEQUENCE, ROBERTA),
    "XLM-R-base": ("XLMRoberta", SEQUENCE, ROBERTA | {"vocab_size": 250002}),
}
SOURCES = ("paddle", "torch", "onnx")
LARGE = "large"
LARGE_SOURCE = "bench.large_model:Large"
LARGE_SPEC = "input_ids:int64[-1,-1];attention_mask:int64[-1,-1]"
_EVERY_S = 0.05


class Figures(NamedTuple):
    """Results of one conversion. steps: name and seconds.

    diff: the served answer's largest difference to PyTorch's.
    """

    steps: list[tuple[str, float]]
    peak_mb: float
    parity: float
    diff: float


def measure(name: str, work: Path) -> dict[str, tuple[Figures, npt.NDArray[np.float32]]]:
    """Return figures and served answer by source."""
    family, head, sizes = MODELS[name]
    np.savez(work / "feeds.npz", **_feeds(sizes))
    run_isolated(
        "bench.convert_sources:three_forms",
        {"family": family, "head": head, "sizes": sizes, "std": 0.0}
        | {"folder": str(work), "feeds": str(work / "feeds.npz")},
        converter="PyTorch",
        needs=("torch", "transformers", "paddlenlp"),
    )
    expected = np.load(work / "logits.npy")
    return {source: _conversion(work, str(work / source), expected) for source in SOURCES}


def measure_large(work: Path) -> dict[str, tuple[Figures, npt.NDArray[np.float32]]]:
    """Convert and serve a model of more than 2 GB, from PyTorch alone.

    Return figures and served answer by source.
    """
    feeds = _feeds({"vocab_size": 400_000, "type_vocab_size": 1})
    np.savez(work / "feeds.npz", **feeds)
    answers = run_isolated(
        "bench.convert_sources:answers",
        {"source": LARGE_SOURCE, "input_spec": LARGE_SPEC, "feeds": str(work / "feeds.npz")},
        converter="PyTorch",
        needs=("torch", "transformers"),
    )
    return {"torch": _conversion(work, LARGE_SOURCE, np.array(answers, np.float32), LARGE_SPEC)}


def _feeds(sizes: dict[str, Any]) -> dict[str, npt.NDArray[np.int64]]:
    """Return two texts of 32 tokens. Both have the same length: logits beyond a text's end mean nothing."""
    ids = np.random.default_rng(3).integers(5, sizes["vocab_size"], (2, 32))
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    return feeds | ({"token_type_ids": ids % 2} if sizes["type_vocab_size"] > 1 else {})


def _conversion(
    work: Path, source: str, expected: npt.NDArray[np.float32], input_spec: str = ""
) -> tuple[Figures, npt.NDArray[np.float32]]:
    """Run `convert all` in a process of its own, and sample its memory with that of its descendants."""
    out = work / f"served-{Path(source).name}"
    command = [sys.executable, "-m", "bench.convert", "--one", source, str(out)]
    command += [str(work / "feeds.npz"), input_spec]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
        _sample_memory(process.pid) as peak,
    ):
        output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the conversion of {source} left with {process.returncode}")
    facts = json.loads(output.splitlines()[-1])
    answer = np.load(out / "answer.npy")
    diff = float(np.abs(answer - expected).max())
    return Figures(facts["steps"], max(peak), facts["parity"], diff), answer


@contextmanager
def _sample_memory(pid: int) -> Iterator[list[float]]:
    """Sample the resident memory of a process and its descendants together, in MB."""
    samples, done = [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(_EVERY_S):
            samples.append(_tree_mb(pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()


def _tree_mb(pid: int) -> float:
    try:
        return resident_mb(pid) + sum(_tree_mb(child) for child in children(pid))
    except (OSError, IndexError):  # it has just ended
        return 0.0


class TimedSteps:
    """Steps of a conversion that record their seconds."""

    def __init__(self) -> None:
        self.times: list[tuple[str, float]] = []
        self._since = time.monotonic()

    def step(self, name: str, total: int = 1) -> None:
        self.end()
        self.times.append((name, 0.0))

    def advance(self) -> None:
        pass

    def say(self, text: str) -> None:
        print(text, file=sys.stderr)  # noqa: T201

    def end(self) -> None:
        now = time.monotonic()
        if self.times:
            self.times[-1] = (self.times[-1][0], now - self._since)
        self._since = now


def convert_one(source: str, out: Path, feeds: Path, input_spec: str) -> None:
    """Convert, answer `feeds` with the served model, and print the figures as one line of JSON."""
    from convert import StepArguments, convert_all
    from convert.result import ConversionOptions
    from pipeline.config.config_file import LocalServiceConf
    from pipeline.engines import create_predictor
    from pipeline.models.serving_model import load_serving_model

    steps = TimedSteps()
    step_arguments = StepArguments(input_spec=input_spec)
    conversion = convert_all(source, out, step_arguments, options=ConversionOptions(steps=steps))
    steps.end()
    conf = LocalServiceConf.model_validate({"model_config": str(out), "thread_num": 2})
    answers = create_predictor(load_serving_model(out), conf).run(dict(np.load(feeds)))
    np.save(out / "answer.npy", np.asarray(answers["logits"]))
    parity = max(report.max_abs_diff for report in conversion.reports)
    print(json.dumps({"steps": steps.times, "parity": parity}))  # noqa: T201


def print_tables(console: Console, name: str, measured: dict[str, Any]) -> None:
    table = Table(title=name, title_justify="left")
    for heading in ("from", "s", "peak MB", "worst step |diff|", "served |diff| to PyTorch"):
        table.add_column(heading, justify="left" if heading == "from" else "right")
    for source, (figures, _) in measured.items():
        seconds = sum(seconds for _, seconds in figures.steps)
        row = f"{seconds:.1f}", f"{figures.peak_mb:.0f}", f"{figures.parity:.2e}", f"{figures.diff:.2e}"
        table.add_row(source, *row)
    console.print(table)
    for source, (figures, _) in measured.items():
        steps = ", ".join(f"{step} {seconds:.1f}" for step, seconds in figures.steps if seconds >= 0.05)
        console.print(f"{source}: {steps}", soft_wrap=True, highlight=False)
    answers = [answer for _, answer in measured.values()]
    apart = max(float(np.abs(one - other).max()) for one in answers for other in answers)
    off = max(figures.diff for figures, _ in measured.values())
    verdict = "[green]PASS[/]" if max(apart, off) <= TOLERANCE else "[red]OVER TARGET[/]"
    console.print(
        f"the served answers are {apart:.2e} apart, and {off:.2e} from PyTorch's; "
        f"target {TOLERANCE:g}: {verdict}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.convert",
        description=__doc__,
        epilog="example: python -m bench.convert BERT-base",
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"{', '.join(MODELS)} (all); {LARGE}")
    parser.add_argument("--one", nargs=4, metavar=("SOURCE", "OUT", "FEEDS", "SPEC"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        source, out, feeds, spec = options.one
        convert_one(source, Path(out), Path(feeds), spec)
        return 0
    unknown = [name for name in options.models if name not in (*MODELS, LARGE)]
    if unknown:
        parser.error(f"there is no {unknown[0]!r}; name some of {', '.join(MODELS)}, {LARGE}")
    console = Console()
    for name in options.models or MODELS:
        with tempfile.TemporaryDirectory() as work:
            measured = measure_large(Path(work)) if name == LARGE else measure(name, Path(work))
            print_tables(console, name, measured)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
