"""The conversion of a model to a smaller precision, compared with the fp32 model."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from convert.output.staging import staged
from convert.output.stamp import STAMP_FILE, check_replaceable, hash_sources, write_stamp
from convert.paddle_onnx.to_onnx import MODEL_FILE, convert_to_onnx
from convert.precision.onnx_steps import NEEDS, quantise
from convert.precision.precision_proof import Original, Reduced, prove_and_write
from convert.precision.precisions import BF16, BOUNDS, CALIBRATED, ONNX_RUNTIME, PADDLE, engine_for
from convert.programs.engines import onnx_runtime_version, paddle_version
from convert.programs.inference_program import read_program, serving_folder
from convert.programs.program_feeds import BATCH_SIZES, Feeds
from convert.programs.runners import program_runner, serving_runner
from convert.proof.parity_report import Bounds, ParityReport
from convert.proof.proof_inputs import Inputs
from convert.proof.target import create_model_target
from convert.result import Conversion, ConversionOptions, find_current_result
from convert.steps.conversion_environment import conversion_python
from pipeline.errors import ConfigError, ConversionError
from pipeline.models.additions import PARITY_FILE
from pipeline.models.serving_model import (
    ADDITIONS,
    SERVER_CONF,
    ServingModel,
    Variable,
    load_serving_model,
)
from pipeline.models.signature import signature_text

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
    """Write the model `source`, a serving or inference model of fp32, in the precision `to` to `out`.

    The result is compared with `source` on the sample of `options`, else on random feeds. Outputs may be off
    by `tolerance` of their largest value. On a sample the share `top1` of the rows must keep the top-1 class.
    Both have a default for each precision. `calibration` are sample files for int8-calibrated. Raises
    ConversionError for an unsupported precision, with an alternative, and ParityError for larger differences.
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
    """Describe the settings that the model has in its serving.yml."""
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
    """Return the bounds; random feeds have no class, so their top-1 agreement counts only on request."""
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
