"""A model in a smaller precision, as a serving model that was held against the fp32 one."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from convert.engine import onnx_runtime_version, paddle_version
from convert.environment import conversion_python
from convert.isolation import run_isolated
from convert.parity import Bounds, ParityReport, Runner, compare, held_to, padding_parity, write_reports
from convert.precision_figures import figures_table, timed_form
from convert.precision_inputs import GivenInputs, read_inputs, store_batches
from convert.precision_routes import BF16, BOUNDS, CALIBRATED, ONNX_RUNTIME, PADDLE, engine_for
from convert.program import InferenceProgram, read_program
from convert.result import Conversion, ConversionOptions
from convert.runners import program_runner, serving_runner
from convert.sample_feeds import Feeds, sample_batches
from convert.staging import STAMP_FILE, check_replaceable, fingerprint_of, is_current, staged, write_stamp
from convert.subject import serving_folder
from convert.text_feeds import named_padding
from convert.to_onnx import MODEL_FILE, convert_to_onnx
from convert.to_serving import sample_rows
from pipeline.errors import ConfigError, ConversionError
from pipeline.model_additions import PARITY_FILE
from pipeline.model_settings import KEY as SETTINGS
from pipeline.serving_model import (
    ADDITIONS,
    SERVER_CONF,
    SERVER_FOLDER,
    Padding,
    ServingModel,
    Variable,
    load_serving_model,
    write_serving_model,
)

_NEEDS = ("onnx", "onnxruntime", "ml_dtypes")  # the last is imported by onnxruntime.quantization
_OWN = {"labels", "padding", "parity", SETTINGS}  # keys of serving.yml that are written anew


@dataclass(frozen=True)
class _Original:
    """The fp32 model as it is described, and what belongs beside it."""

    source: Path
    model: ServingModel
    program: InferenceProgram
    beside: tuple[Path, ...]
    run: Runner


@dataclass(frozen=True)
class _Reduced:
    """The files of the model in its new precision, and how they are to be run. `fp32` is it before, in the
    same engine, where the original runs in another."""

    program: Path
    params: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    earlier: tuple[ParityReport, ...] = ()
    fp32: Path | None = None


def convert_precision(
    source: Path,
    out: Path,
    *,
    to: str,
    engine: str = "",
    calibration: Sequence[Path] = (),
    generated_calibration: bool = False,
    inputs: Sequence[Path] = (),
    tolerance: float | None = None,
    top1: float | None = None,
    options: ConversionOptions | None = None,
) -> Conversion:
    """Write the model `source`, a serving or inference model of fp32, in the precision `to` to `out`.

    It is compared with `source` on the `inputs` (.npz batches or texts), else on random feeds: outputs may be
    off by `tolerance` of their largest value, and on `inputs` the share `top1` of the rows has to keep its
    top-1 class; both have a default for each precision. `calibration` is for int8-calibrated. Raises
    ConversionError for what can't be done, with the other way, and ParityError when the outputs differ more.
    """
    options = options or ConversionOptions()
    check_replaceable(out)
    _check_calibration(to, calibration, generated_calibration)
    bounds = _bounds(to, tolerance, top1, demands_classes=bool(inputs))
    options.steps.step("Reading the model")
    original = _read_original(source)
    engine = engine_for(to, engine, original.program)
    judged, calibrating = read_inputs(inputs, original.model), read_inputs(calibration, original.model)
    if engine == ONNX_RUNTIME:
        conversion_python(_NEEDS)
    settings = {
        "to": to,
        "engine": engine,
        **asdict(bounds),
        "fp32": options.tolerance,
        "lengths": options.lengths,
        "generated": generated_calibration,
        "given": [len(calibration), len(inputs)],
        "versions": [onnx_runtime_version(), paddle_version()],
    }
    fingerprint = fingerprint_of([*original.program.files, *original.beside, *calibration, *inputs], settings)
    if options.dry_run:
        message = f"would write {source} in {to} for {engine} to {out}; nothing was written"
        return Conversion(out, False, message)
    if not options.force and is_current(out, fingerprint):
        return Conversion(out, False, f"{out} is up to date")
    with tempfile.TemporaryDirectory() as scratch, staged(out) as made:
        reduced = _reduce(original, to, engine, calibrating, Path(scratch), options)
        reports, shown = _prove_and_write(original, reduced, made, to, bounds, judged, options)
        facts = {"source": str(source.resolve()), "precision": to, "bounds": asdict(bounds)}
        write_stamp(made, fingerprint, facts)
    message = f"{out} holds the {to} model, for {engine}"
    if reduced.settings:
        told = ", ".join(f"{key}: {str(value).lower()}" for key, value in reduced.settings.items())
        message += f"; its serving.yml has {told}, so leave that out of config.yml"
    return Conversion(out, True, message, reports, shown)


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
    """Random feeds are of no class, so that of those the top-1 agreement is only shown unless asked for."""
    usual = BOUNDS.get(to, Bounds())  # an unknown one is told with the engines
    bounds = Bounds(
        usual.tolerance if tolerance is None else tolerance,
        True,
        (usual.top1_needed if demands_classes else 0.0) if top1 is None else top1,
    )
    if not 0 <= bounds.tolerance < float("inf"):
        raise ConversionError(f"the tolerance {bounds.tolerance} is not a number from 0 up.")
    if not 0 <= bounds.top1_needed <= 1:
        raise ConversionError(f"the top-1 agreement {bounds.top1_needed} is not a share from 0 to 1.")
    return bounds


def _read_original(source: Path) -> _Original:
    folder = serving_folder(source)
    program = read_program(folder or source)
    if folder is None:
        feeds, fetches = (
            tuple(Variable(v.name, v.name, v.dtype, v.shape, v.name in program.ragged) for v in specs)
            for specs in (program.feeds, program.fetches)
        )
        model = ServingModel(
            program.program.parent, program.program, program.params, feeds, fetches, format=program.format
        )
        return _Original(source, model, program, (), program_runner(program))
    model = load_serving_model(folder)
    if "precision" in model.additions:
        raise ConversionError(f"{source} is of {model.additions['precision']} already; name the fp32 model.")
    known = {*program.files, *(folder / name for name in (SERVER_CONF, ADDITIONS, PARITY_FILE, STAMP_FILE))}
    beside = sorted(path for path in folder.iterdir() if path.is_file() and path not in known)
    described = [path for path in (folder / SERVER_CONF, folder / ADDITIONS) if path.is_file()]
    return _Original(source, model, program, (*beside, *described), serving_runner(folder))


def _reduce(
    original: _Original,
    to: str,
    engine: str,
    calibrating: GivenInputs,
    scratch: Path,
    options: ConversionOptions,
) -> _Reduced:
    program = original.program
    if engine == PADDLE:  # bf16: oneDNN converts as it loads
        return _Reduced(program.program, program.params, {"precision": BF16})
    earlier: tuple[ParityReport, ...] = ()
    fp32 = program.program
    if program.format != "onnx":
        conversion = convert_to_onnx(original.source, scratch / "onnx", options=options)
        fp32, earlier = conversion.out / MODEL_FILE, conversion.reports
    arguments: dict[str, Any] = {"model": str(fp32), "out": str(scratch / MODEL_FILE)}
    if to == CALIBRATED:
        batches = calibrating.batches or _generated(program, options)
        store_batches(batches, scratch / "calibration")
        arguments |= {"calibration": str(scratch / "calibration"), "feeds": list(batches[0])}
    run_isolated(
        f"convert.precision_onnx:{to.replace('-', '_')}_step",
        arguments,
        converter=f"onnxruntime to {to}",
        needs=_NEEDS,
        steps=options.steps,
        timeout_s=options.step_timeout_s,
    )
    # Its QuantizeLinear and DequantizeLinear are only fused into products of int8 by that.
    settings = {"ir_optim": True} if to == CALIBRATED else {}
    return _Reduced(scratch / MODEL_FILE, None, settings, earlier, fp32 if program.format != "onnx" else None)


def _prove_and_write(
    original: _Original,
    reduced: _Reduced,
    out: Path,
    to: str,
    bounds: Bounds,
    judged: GivenInputs,
    options: ConversionOptions,
) -> tuple[tuple[ParityReport, ...], tuple[object, ...]]:
    """The reports of the precision, which are stored with those of earlier steps, and a table of figures."""
    model = original.model
    names = [fetch.alias for fetch in model.fetches]
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / "trial"
        _write(original, reduced, trial)
        try:
            run = serving_runner(trial / SERVER_FOLDER)
        except ConfigError as exc:
            raise ConversionError(
                f"{original.source} in {to} can't be run here: {exc.message.rstrip('.')}."
            ) from exc
        batches = judged.batches or _generated(original.program, options)
        options.steps.step(f"Parity of fp32 and {to}")
        report = held_to(compare(f"fp32 to {to}", names, original.run, run, batches), bounds)
        report.require()
        padding, padded = _prove_padding(original, run, judged.rows, bounds, options)
        options.steps.step("Time of a run")
        forms = [timed_form("fp32", original.program.files, original.run, batches)]
        if reduced.fp32 is not None:
            _write(original, _Reduced(reduced.fp32), Path(folder) / "fp32")
            fp32 = serving_runner(Path(folder) / "fp32" / SERVER_FOLDER)
            forms.append(timed_form("fp32 as ONNX", [reduced.fp32], fp32, batches))
        files = [path for path in (reduced.program, reduced.params) if path]
        forms.append(timed_form(to, files, run, batches))
    reports = (report, *padded)
    facts = {"precision": to, "parity": {one.step: one.max_abs_diff for one in (*reduced.earlier, *reports)}}
    _write(original, reduced, out, padding, facts)
    write_reports(out / SERVER_FOLDER / PARITY_FILE, [*reduced.earlier, *reports])
    return reports, (figures_table(forms),)


def _prove_padding(
    original: _Original, run: Runner, rows: Sequence[Feeds], bounds: Bounds, options: ConversionOptions
) -> tuple[Padding | None, tuple[ParityReport, ...]]:
    """What the fp32 model declares to be safe to pad, tried anew: scales may depend on the batch."""
    model = original.model
    if model.padding is None:
        return None, ()
    options.steps.step("Padding")
    names = [fetch.alias for fetch in model.fetches]
    rows = rows or sample_rows(original.program, options.lengths)
    report, cuts = padding_parity(run, names, rows, named_padding(model))
    report = held_to(report, bounds)
    report.require()
    return Padding(model.padding.feeds, cuts), (report,)


def _write(
    original: _Original,
    reduced: _Reduced,
    out: Path,
    padding: Padding | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    model = original.model
    kept = {key: value for key, value in model.additions.items() if key not in _OWN}
    settings = {**model.additions.get(SETTINGS, {}), **reduced.settings}
    extra = [path for path in original.beside if path.name not in (SERVER_CONF, ADDITIONS)]
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
            additions={**kept, **({SETTINGS: settings} if settings else {}), **(facts or {})},
            extra_files=[*data_files, *extra],
        )
    except ConfigError as exc:
        raise ConversionError(f"{exc.message.rstrip('.')}.") from exc


def _generated(program: InferenceProgram, options: ConversionOptions) -> list[Feeds]:
    return sample_batches(program.feeds, program.id_limits, options.lengths)
