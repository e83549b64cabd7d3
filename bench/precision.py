"""The demo in every precision: size, CPU time of a run, and its service's answers to held-out headlines.

`paddlewheel convert precision` makes each (it needs `make convert-env`), calibrated on training headlines.
CPU times are medians of runs with one thread, one model after the other.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.load import CannotMeasure
from bench.running import DEMO_MODEL, ROOT, default_config, running_service
from client.http_client import HttpClient
from convert import ConversionOptions, convert_precision, convert_to_onnx
from convert.demo.headlines import Headline, read_headlines, split_headlines
from convert.paddle_onnx.to_onnx import MODEL_FILE
from convert.precision.precisions import CALIBRATED, PRECISIONS
from convert.programs.inference_program import read_program
from convert.proof.padding import pad_rows
from convert.proof.sample_files import text_rows
from convert.proof.target import create_model_target, named_padding
from pipeline.config.config_file import LocalServiceConf
from pipeline.engines import Predictor, create_predictor
from pipeline.errors import ServingError
from pipeline.models.serving_model import load_serving_model, merge_model_settings, write_serving_model

FP32, FP32_ONNX = "fp32, Paddle", "fp32, ONNX Runtime"
CALIBRATION_TEXTS = 256
ROWS = (1, 8, 32)
TEXTS_A_REQUEST = 16
EXAMPLE = "example: python -m bench.precision --runs 100"


@dataclass(frozen=True)
class Made:
    """A serving model, and the difference of its logits to those of fp32 when it was made."""

    directory: Path
    max_abs_diff: float = 0.0


@dataclass(frozen=True)
class Measured:
    """Results of one form.

    Bytes on disk, answers by headline, and the median CPU ms of a run by number of rows.
    """

    made: Made
    size: int
    labels: list[str]
    run_ms: Mapping[int, float]


def make_models(
    folder: Path, headlines: Mapping[str, Sequence[Headline]], console: Console
) -> dict[str, Made]:
    """Make the demo in all forms, by name. A form that can't be made here is reported and skipped."""
    files = {name: folder / f"{name}.txt" for name in headlines}
    for name, file in files.items():
        file.write_text("".join(f"{headline.text}\n" for headline in headlines[name]), encoding="utf-8")
    models = {FP32: Made(DEMO_MODEL), FP32_ONNX: _as_onnx(folder)}
    for to in PRECISIONS:
        calibration = [files["train"]] if to == CALIBRATED else []
        try:
            conversion = convert_precision(
                DEMO_MODEL, folder / to, to=to, calibration=calibration,
                options=ConversionOptions(sample=(files["held_out"],)),
            )  # fmt: skip
        except ServingError as exc:
            console.print(f"{to} is left out: {exc.message}")
            continue
        models[to] = Made(folder / to, conversion.reports[0].max_abs_diff)
    return models


def _as_onnx(folder: Path) -> Made:
    """Return the demo's serving model with its program as ONNX."""
    conversion = convert_to_onnx(DEMO_MODEL, folder / "onnx")
    demo = load_serving_model(DEMO_MODEL)
    write_serving_model(
        folder / "fp32", conversion.out / MODEL_FILE, None, demo.feeds, demo.fetches,
        padding=demo.padding, labels=demo.labels, extra_files=[demo.directory / "vocab.txt"],
    )  # fmt: skip
    return Made(folder / "fp32", conversion.reports[0].max_abs_diff)


def served_labels(model: Path, texts: Sequence[str]) -> list[str]:
    """Return the default service's answers with this model.

    The model's own settings replace the service's.
    """
    config = default_config(instances=1)
    conf = config["op"]["bert"]["local_service_conf"]
    conf["model_config"] = str(model)
    del conf["precision"]
    labels: list[str] = []
    with (
        running_service(ROOT / "web_service.py", config) as service,
        HttpClient(service.url, retries=0, timeout_s=60) as client,
    ):
        for at in range(0, len(texts), TEXTS_A_REQUEST):
            outputs = client.predict(list(texts[at : at + TEXTS_A_REQUEST])).outputs
            labels += map(str, outputs["label"])
    return labels


def cpu_ms(models: Mapping[str, Made], texts: Path, runs: int) -> dict[str, dict[int, float]]:
    """Return medians by model and rows.

    The models take turns, so that a slow minute of the host affects all.
    """
    demo = load_serving_model(DEMO_MODEL)
    rows = text_rows(texts, create_model_target(demo, read_program(demo.directory)))
    predictors = {name: _predictor(model.directory) for name, model in models.items()}
    times: dict[str, dict[int, list[float]]] = {name: {count: [] for count in ROWS} for name in models}
    for count in ROWS:
        batches = [
            pad_rows(rows[at : at + count], named_padding(demo)) for at in range(0, len(rows) - count, count)
        ]
        for number in range(-3, runs):  # the first three are not counted
            for name, predictor in predictors.items():
                start = time.process_time()
                predictor.run(batches[number % len(batches)])
                if number >= 0:
                    times[name][count].append(time.process_time() - start)
    return {
        name: {count: statistics.median(seconds) * 1e3 for count, seconds in by_rows.items()}
        for name, by_rows in times.items()
    }


def _predictor(directory: Path) -> Predictor:
    model = load_serving_model(directory)
    conf = LocalServiceConf.model_validate(
        {"model_config": str(directory), "thread_num": 1, "ir_optim": True, "strict_precision": True}
    )
    return create_predictor(model, merge_model_settings(model, conf))


def count_bytes(directory: Path) -> int:
    model = load_serving_model(directory)
    return sum(path.stat().st_size for path in (model.program, model.params) if path)


def print_table(console: Console, measured: Mapping[str, Measured], truth: Sequence[str]) -> None:
    """Print a line for each form, starting with Paddle's fp32 model."""
    table = Table(
        title=f"The demo: {len(truth)} held-out headlines served; CPU ms of a run of 1, 8, 32 rows",
        title_justify="left",
    )
    table.add_column("", no_wrap=True)
    headings = ["MB", "max |diff|", "as fp32", "accuracy", *map(str, ROWS)]
    for heading in headings:
        table.add_column(heading, justify="right")
    first = measured[FP32].labels
    for name, of in measured.items():
        agreeing = sum(map(str.__eq__, of.labels, first))
        right = sum(map(str.__eq__, of.labels, truth))
        table.add_row(
            name,
            f"{of.size / 1e6:.2f}",
            f"{of.made.max_abs_diff:.4f}",
            f"{agreeing / len(truth):.1%}",
            f"{right / len(truth):.3f}",
            *(f"{of.run_ms[count]:.2f}" for count in ROWS),
        )
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.precision", description=__doc__, epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--runs", type=int, default=100, help="runs of each number of rows, default: %(default)s"
    )
    options = parser.parse_args()
    console = Console(markup=False)
    split = split_headlines(read_headlines())
    headlines = {"train": split.train[:CALIBRATION_TEXTS], "held_out": split.held_out}
    texts = [headline.text for headline in split.held_out]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        try:
            models = make_models(Path(folder), headlines, console)
            labels = {name: served_labels(model.directory, texts) for name, model in models.items()}
            times = cpu_ms(models, Path(folder) / "held_out.txt", options.runs)
        except (CannotMeasure, ServingError) as exc:
            console.print(f"not measured: {exc}", style="red")
            return 1
        measured = {
            name: Measured(model, count_bytes(model.directory), labels[name], times[name])
            for name, model in models.items()
        }
    print_table(console, measured, [headline.label for headline in split.held_out])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
