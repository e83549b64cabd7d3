"""The proof of a precision: a comparison with fp32, alone and in batches, with size and speed."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from convert.programs.inference_program import InferenceProgram
from convert.programs.program_feeds import Feeds
from convert.programs.runners import Runner, serving_runner
from convert.proof.padding import answers_by_row, padding_parity
from convert.proof.parity import compare
from convert.proof.parity_report import Bounds, FailedParity, ParityReport, judge_by, write_reports
from convert.proof.target import Target, named_padding
from convert.result import ConversionOptions
from pipeline.errors import ConfigError, ConversionError
from pipeline.models.additions import PARITY_FILE
from pipeline.models.digests import KEY as DIGESTS
from pipeline.models.digests import hash_files
from pipeline.models.serving_model import (
    ADDITIONS,
    SERVER_CONF,
    SERVER_FOLDER,
    Padding,
    ServingModel,
    write_serving_model,
)
from pipeline.models.serving_model import KEY as SETTINGS

_RUNS = 30


@dataclass(frozen=True)
class Form:
    """One form of the model, with its size and speed."""

    name: str
    size: int  # bytes on disk
    run_ms: float  # median of the runs


def timed_form(name: str, files: Sequence[Path], run: Runner, batches: Sequence[Feeds]) -> Form:
    """Measure 30 runs of the first batches, after one run of each."""
    chosen = [batches[number % len(batches)] for number in range(_RUNS)]
    for batch in batches[:_RUNS]:
        run(batch)
    times = []
    for batch in chosen:
        start = time.perf_counter()
        run(batch)
        times.append(time.perf_counter() - start)
    return Form(name, sum(path.stat().st_size for path in files), statistics.median(times) * 1e3)


def figures_table(forms: Sequence[Form]) -> Table:
    """Return a table of the forms, the original first."""
    table = Table(title="Size and time of a run", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("model", no_wrap=True)
    for column in ("MB", "of fp32", "ms a run", "of fp32"):
        table.add_column(column, justify="right", no_wrap=True)
    first = forms[0]
    for form in forms:
        table.add_row(
            form.name,
            f"{form.size / 1e6:.2f}",
            f"{form.size / first.size:.0%}",
            f"{form.run_ms:.2f}",
            f"{form.run_ms / first.run_ms:.0%}",
        )
    return table


_REPLACED_KEYS = {"labels", "padding", "parity", DIGESTS, SETTINGS}  # of serving.yml


@dataclass(frozen=True)
class Original:
    """The fp32 model with its description and extra files."""

    source: Path
    model: ServingModel
    program: InferenceProgram
    extra_files: tuple[Path, ...]
    run: Runner
    target: Target


@dataclass(frozen=True)
class Reduced:
    """The files of the model in its new precision."""

    program: Path
    params: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # that it runs with
    earlier: tuple[ParityReport, ...] = ()  # reports of steps before
    fp32: Path | None = None  # the fp32 model for this engine, if the original is for another


def prove_and_write(
    original: Original,
    reduced: Reduced,
    out: Path,
    to: str,
    bounds: Bounds,
    batches: Sequence[Feeds],
    options: ConversionOptions,
) -> tuple[tuple[ParityReport, ...], tuple[object, ...]]:
    """Prove the reduced model and write it to `out`; return its reports and a table of figures."""
    model = original.model
    names = [fetch.alias for fetch in model.fetches]
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / "trial"
        _write_model(original, reduced, trial)
        try:
            run = serving_runner(trial / SERVER_FOLDER)
        except ConfigError as exc:
            raise ConversionError(
                f"{original.source} in {to} can't be run here: {exc.message.rstrip('.')}."
            ) from exc
        options.steps.step(f"Parity of fp32 and {to}")
        report = judge_by(compare(f"fp32 to {to}", names, original.run, run, batches), bounds)
        _require(report)
        padding, rows = _prove_rows(original, run, bounds, options)
        options.steps.step("Time of a run")
        forms = [timed_form("fp32", original.program.files, original.run, batches)]
        if reduced.fp32 is not None:
            _write_model(original, Reduced(reduced.fp32), Path(folder) / "fp32")
            fp32 = serving_runner(Path(folder) / "fp32" / SERVER_FOLDER)
            forms.append(timed_form("fp32 as ONNX", [reduced.fp32], fp32, batches))
        files = [path for path in (reduced.program, reduced.params) if path]
        forms.append(timed_form(to, files, run, batches))
    reports = (report, *rows)
    facts = {
        "precision": to,
        "parity": {parity.step: parity.max_abs_diff for parity in (*reduced.earlier, *reports)},
        DIGESTS: hash_files(files),
    }
    _write_model(original, reduced, out, padding, facts)
    write_reports(out / SERVER_FOLDER / PARITY_FILE, [*reduced.earlier, *reports])
    return reports, (figures_table(forms),)


def _prove_rows(
    original: Original, run: Runner, bounds: Bounds, options: ConversionOptions
) -> tuple[Padding | None, tuple[ParityReport, ...]]:
    """Compare rows alone and in a batch, as scales may depend on the batch; padded if fp32 declares padding.

    A model that doesn't answer row by row has nothing to compare.
    """
    model = original.model
    names = [fetch.alias for fetch in model.fetches]
    if model.padding is None and not original.target.by_row:
        return None, ()
    options.steps.step("Rows alone and together")
    pads = named_padding(model)
    rows = options.inputs.rows(original.target, pads)
    if model.padding is None and not answers_by_row(run, rows):
        return None, ()
    step = "batch" if model.padding is None else "padding"
    report, cuts = padding_parity(run, names, rows, pads, step=step)
    report = judge_by(report, bounds)
    _require(report)
    return replace(model.padding, fetches=cuts) if model.padding else None, (report,)


def _require(report: ParityReport) -> None:
    if not report.passed:
        raise FailedParity(
            f"{report.failure}; nothing was written: try another precision, or allow it with --tolerance and "
            "--top1.",
            report,
        )


def _write_model(
    original: Original,
    reduced: Reduced,
    out: Path,
    padding: Padding | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    model = original.model
    additions = {key: value for key, value in model.additions.items() if key not in _REPLACED_KEYS}
    settings = {**model.additions.get(SETTINGS, {}), **reduced.settings}
    extra = [path for path in original.extra_files if path.name not in (SERVER_CONF, ADDITIONS)]
    data_files = original.program.data_files if reduced.program == original.program.program else ()
    try:
        write_serving_model(
            out,
            reduced.program,
            reduced.params,
            model.feeds,
            model.fetches,
            padding=padding,
            labels=model.labels,
            additions={**additions, **({SETTINGS: settings} if settings else {}), **(facts or {})},
            extra_files=[*data_files, *extra],
        )
    except ConfigError as exc:
        raise ConversionError(f"{exc.message.rstrip('.')}.") from exc
