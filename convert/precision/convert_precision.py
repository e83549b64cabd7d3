"""Converts an fp32 model to fp16, bf16 or int8, and compares its outputs with the fp32 model's outputs."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from convert.output.staging import STAMP_FILE, check_replaceable, hash_sources, staged, write_stamp
from convert.paddle_onnx.to_onnx import MODEL_FILE, convert_to_onnx
from convert.precision.onnx_steps import NEEDS, quantise
from convert.precision.precisions import BF16, BOUNDS, CALIBRATED, ONNX_RUNTIME, PADDLE, engine_for
from convert.programs.engines import onnx_runtime_version, paddle_version
from convert.programs.inference_program import InferenceProgram, read_program, serving_folder
from convert.programs.program_feeds import BATCH_SIZES, Feeds
from convert.programs.runners import Runner, program_runner, serving_runner
from convert.proof.padding import answers_by_row, padding_parity
from convert.proof.parity import Bounds, FailedParity, ParityReport, compare, judge_by, write_reports
from convert.proof.proof_inputs import Inputs
from convert.proof.target import Target, create_model_target, named_padding
from convert.result import Conversion, ConversionOptions, find_current_result
from convert.steps.conversion_environment import conversion_python
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
    Variable,
    load_serving_model,
    write_serving_model,
)
from pipeline.models.serving_model import KEY as SETTINGS
from pipeline.models.signature import signature_text

_RUNS = 30


@dataclass(frozen=True)
class Form:
    """A model in one precision, with its size on disk and inference time, for the printed comparison."""

    name: str
    size: int  # bytes on disk
    run_ms: float  # median of the runs


def timed_form(name: str, files: Sequence[Path], run: Runner, batches: Sequence[Feeds]) -> Form:
    """Measure the median time of 30 inferences over the batches, in ms, after one warm-up of each batch.

    name: the row's name in the table. files: the model's files, whose sizes are added.
    """
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
    """Return a terminal table of model sizes and inference times, also relative to the first model, fp32."""
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
    """The fp32 model to be converted: its description, its files, and a function to run it."""

    source: Path
    model: ServingModel
    program: InferenceProgram
    extra_files: tuple[Path, ...]
    run: Runner
    target: Target


@dataclass(frozen=True)
class Reduced:
    """The files of the model in its new precision, before they are compared with the fp32 model."""

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
    """Compare the reduced-precision model with the fp32 model, then write it to `out` as a serving model.

    batches: inputs for the comparison. bounds: the allowed differences. Returns the comparison reports and a
    table of sizes and times. Raises FailedParity if the outputs differ more than `bounds` allows.
    """
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
    """Compare each row run alone with the row run in a batch, because int8 scales may depend on the batch.

    If the fp32 model declares padding, the batch is padded. Returns the padding for the new model and the
    report, or None and no report if the model's rows are not independent. Raises FailedParity.
    """
    model = original.model
    names = [fetch.alias for fetch in model.fetches]
    if model.padding is None and not original.target.by_row:
        return None, ()
    options.steps.step("Rows alone and together")
    pads = named_padding(model)
    rows = options.proof_inputs.rows(original.target, pads)
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


_CHECKED_BATCHES = 9  # of a calibration; as many are generated


def convert_precision(
    source: Path,
    out: Path,
    *,
    to: str,
    engine: str = "",
    calibration: Sequence[Path] = (),
    generated_calibration: bool = False,
    tolerance: float | None = None,
    top1: float | None = None,
    options: ConversionOptions | None = None,
) -> Conversion:
    """Write the fp32 model `source`, a serving model or an exported one, to `out` in the precision `to`.

    The outputs are compared with `source` on the sample of `options`, else on random inputs. They may differ
    by `tolerance`, relative to their largest value. On a sample, the share `top1` of the rows must keep the
    top-1 class. Both have defaults for each precision. `calibration` are files of inputs for int8-calibrated.
    Raises ConversionError for an unsupported precision, with an alternative, and ParityError for larger
    differences.
    """
    options = options or ConversionOptions()
    check_replaceable(out)
    _check_calibration(to, calibration, generated_calibration)
    bounds = _bounds(to, tolerance, top1, demands_classes=bool(options.sample))
    options.steps.step("Reading the model")
    original = _read_original(source)
    engine = engine_for(to, engine, original.program)
    judged, calibrating = (
        Inputs(options.lengths, tuple(files)).batches(original.target, sizes=() if files else BATCH_SIZES)
        for files in (options.sample, calibration)
    )
    if engine == ONNX_RUNTIME:
        conversion_python(NEEDS)
    settings = {
        "to": to,
        "engine": engine,
        **asdict(bounds),
        "fp32": options.tolerance,
        "lengths": options.lengths,
        "generated": generated_calibration,
        "given": [len(calibration), len(options.sample)],
        "versions": [onnx_runtime_version(), paddle_version()],
    }
    files = [*original.program.files, *original.extra_files, *calibration, *options.sample]
    fingerprint = hash_sources(files, settings)
    current = find_current_result(
        out, fingerprint, f"would write {source} in {to} for {engine} to {out}", options
    )
    if current is not None:
        return current
    with tempfile.TemporaryDirectory() as scratch, staged(out) as folder:
        reduced = _reduce(original, to, engine, calibrating, Path(scratch), options)
        reports, shown = prove_and_write(original, reduced, folder, to, bounds, judged, options)
        facts = {"source": str(source.resolve()), "precision": to, "bounds": asdict(bounds)}
        write_stamp(folder, fingerprint, facts)
    message = f"{out} holds the {to} model, for {engine}{_describe_settings(reduced.settings)}"
    return Conversion(out, True, message, reports, shown)


def _describe_settings(settings: Mapping[str, Any]) -> str:
    """Return the last part of the final message, about settings in serving.yml; empty without settings."""
    if not settings:
        return ""
    entries = ", ".join(f"{key}: {str(value).lower()}" for key, value in settings.items())
    return f"; its serving.yml has {entries}, so leave that out of config.yml"


def _check_calibration(to: str, calibration: Sequence[Path], generated: bool) -> None:
    if to != CALIBRATED and (calibration or generated):
        raise ConversionError(f"inputs for a calibration are of use to {CALIBRATED} alone, not to {to}.")
    if to == CALIBRATED and not calibration and not generated:
        raise ConversionError(
            f"{CALIBRATED} needs representative inputs: name texts or .npz files with --calibration (or "
            "--generated-calibration, for random ones and rough ranges)."
        )
    if calibration and generated:
        raise ConversionError("--calibration and --generated-calibration exclude each other; give one.")


def _bounds(to: str, tolerance: float | None, top1: float | None, *, demands_classes: bool) -> Bounds:
    """Return the allowed differences: the arguments, or else the defaults of the precision `to`.

    Without `demands_classes`, the top-1 agreement is only required if `top1` is given, because random inputs
    have no class.
    """
    usual = BOUNDS.get(to, Bounds())  # the engines report an unknown precision
    bounds = Bounds(
        usual.tolerance if tolerance is None else tolerance,
        usual.least_scale,
        (usual.top1_needed if demands_classes else 0.0) if top1 is None else top1,
    )
    if not 0 <= bounds.tolerance < float("inf"):
        raise ConversionError(f"the tolerance {bounds.tolerance} is not a number from 0 up.")
    if not 0 <= bounds.top1_needed <= 1:
        raise ConversionError(f"the top-1 agreement {bounds.top1_needed} is not a share from 0 to 1.")
    return bounds


def _read_original(source: Path) -> Original:
    folder = serving_folder(source)
    program = read_program(folder or source)
    if folder is None:
        feeds, fetches = (
            tuple(Variable(v.name, v.name, v.dtype, v.shape, v.name in program.ragged) for v in specs)
            for specs in (program.feeds, program.fetches)
        )
        model = ServingModel(
            program.program.parent,
            program.program,
            program.params,
            feeds,
            fetches,
            format=program.format,
            engine=ONNX_RUNTIME if program.format == "onnx" else PADDLE,
        )
        try:
            signature_text(feeds, fetches)
        except ConfigError as exc:
            raise ConversionError(exc.message) from exc
        return Original(
            source, model, program, (), program_runner(program), create_model_target(model, program)
        )
    model = load_serving_model(folder)
    if "precision" in model.additions:
        raise ConversionError(f"{source} is of {model.additions['precision']} already; name the fp32 model.")
    own_files = {
        *program.files,
        *(folder / name for name in (SERVER_CONF, ADDITIONS, PARITY_FILE, STAMP_FILE)),
    }
    extra_files = sorted(path for path in folder.iterdir() if path.is_file() and path not in own_files)
    described = [path for path in (folder / SERVER_CONF, folder / ADDITIONS) if path.is_file()]
    target = create_model_target(model, program)
    return Original(source, model, program, (*extra_files, *described), serving_runner(folder), target)


def _reduce(
    original: Original,
    to: str,
    engine: str,
    calibrating: Sequence[Feeds],
    scratch: Path,
    options: ConversionOptions,
) -> Reduced:
    program = original.program
    if engine == PADDLE:  # bf16: oneDNN converts as it loads
        return Reduced(program.program, program.params, {"precision": BF16})
    earlier: tuple[ParityReport, ...] = ()
    fp32 = program.program
    if program.format != "onnx":
        conversion = convert_to_onnx(original.source, scratch / "onnx", options=options)
        fp32, earlier = conversion.out / MODEL_FILE, conversion.reports
    calibrating = calibrating if to == CALIBRATED else ()
    for batch in calibrating[:_CHECKED_BATCHES]:
        original.run(batch)  # an error here is the model's, not the converter's
    quantise(to, fp32, scratch / MODEL_FILE, options, calibrating, scratch)
    # Only ir_optim fuses QuantizeLinear and DequantizeLinear into int8 products.
    settings = {"ir_optim": True} if to == CALIBRATED else {}
    return Reduced(scratch / MODEL_FILE, None, settings, earlier, fp32 if program.format != "onnx" else None)
