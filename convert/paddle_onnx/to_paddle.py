"""Converts an ONNX model to Paddle and compares the outputs, or keeps the ONNX model if that fails."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from convert.from_paddle.export import PROGRAM_NAME
from convert.output.staging import check_replaceable, hash_sources, staged, write_stamp
from convert.programs.engines import onnx_runtime_version, paddle_version
from convert.programs.inference_program import PROTOBUF_BYTES, InferenceProgram, read_program
from convert.programs.program_feeds import Feeds
from convert.programs.runners import Runner, program_runner
from convert.proof.parity import ParityReport, compare, write_reports
from convert.proof.target import create_target
from convert.result import Conversion, ConversionOptions, find_current_result
from convert.steps.conversion_environment import conversion_python
from convert.steps.isolation import run_isolated
from convert.to_serving.notes import NOTES_FILE, carry_notes
from pipeline.errors import ConversionError, ParityError
from pipeline.models.additions import PARITY_FILE

_CONVERTER = "x2paddle"
_NEEDS = (_CONVERTER, "onnx")


def convert_onnx(
    source: Path, out: Path, *, fallback: bool = True, options: ConversionOptions | None = None
) -> Conversion:
    """Convert the ONNX model `source`, a .onnx file or its folder, to a Paddle model in the folder `out`.

    The outputs are compared with ONNX Runtime. Inputs keep their names; the outputs' names are stored in
    model_notes.json. If x2paddle fails, or the outputs differ, `out` becomes a folder with the unchanged ONNX
    model, and the message says why. Without `fallback` these cases raise ConversionError or ParityError.
    Raises ConversionError for a source that is not an ONNX model, or that ONNX Runtime can't run.
    """
    options = options or ConversionOptions()
    steps = options.steps
    check_replaceable(out)
    steps.step("Reading the ONNX model")
    model = read_program(source)
    if model.format != "onnx":
        raise ConversionError(f"{model.program} is a Paddle program already; serve it as it is.")
    conversion_python(_NEEDS)
    settings = {
        "paddle": paddle_version(),
        "onnxruntime": onnx_runtime_version(),
        "fallback": fallback,
        "tolerance": options.tolerance,
        "lengths": options.lengths,
    }
    notes = model.program.parent / NOTES_FILE
    extra_files = [*([notes] if notes.is_file() else []), *options.sample]
    fingerprint = hash_sources([*model.files, *extra_files], settings)
    current = find_current_result(out, fingerprint, f"would convert {model.program} to {out}", options)
    if current is not None:
        return current
    batches = options.proof_inputs.batches(create_target(model))
    reference = program_runner(model)
    for batch in batches:
        reference(batch)  # a model that can't be run has no fall-back either
    with staged(out) as folder:
        carry_notes(model.program.parent, folder, [fetch.name for fetch in model.fetches])
        reports: tuple[ParityReport, ...] = ()
        try:
            reports = (_convert_to_paddle(model, folder, reference, batches, options),)
            message = f"{out} holds the Paddle model"
        except (ConversionError, ParityError) as exc:
            if not fallback:
                raise
            _copy_onnx(model, folder)
            why = exc.message.rstrip(".").removesuffix("; nothing was written")
            message = f"{why}; {out} holds the ONNX model as it is, for ONNX Runtime to serve"
        write_stamp(folder, fingerprint, {"source": str(source)})
    return Conversion(out, True, message, reports)


def _convert_to_paddle(
    model: InferenceProgram,
    folder: Path,
    reference: Runner,
    batches: Sequence[Feeds],
    options: ConversionOptions,
) -> ParityReport:
    """Convert the ONNX model in a separate process, compare the outputs on `batches`, and return the report.

    Raises ConversionError if x2paddle fails, ParityError if the outputs differ.
    """
    names = [fetch.name for fetch in model.fetches]
    size = sum(file.stat().st_size for file in model.files)
    if size > PROTOBUF_BYTES:
        raise ConversionError(
            f"{model.program} can't become a Paddle model: it is of {size / 1e9:.1f} GB, and {_CONVERTER} "
            "takes 2 GB at most."
        )
    try:
        unused = run_isolated(
            "convert.paddle_onnx.x2paddle_step:export_step",
            {"model": str(model.program), "out": str(folder)},
            converter=_CONVERTER,
            needs=_NEEDS,
            steps=options.steps,
            timeout_s=options.step_timeout_s,
        )
    except ConversionError as exc:
        why = exc.message.rstrip(".")
        raise ConversionError(f"{model.program} can't become a Paddle model: {why}.") from exc
    if unused:
        options.steps.say(f"The model doesn't use {', '.join(unused)}; the Paddle model is without.")
    options.steps.step("Parity of ONNX and Paddle")
    paddle = program_runner(read_program(folder))
    report = compare("ONNX to Paddle", names, reference, paddle, batches, options.tolerance)
    report.require()
    write_reports(folder / PARITY_FILE, [report])
    return report


def _copy_onnx(model: InferenceProgram, folder: Path) -> None:
    """Delete the failed Paddle model from the folder and copy the ONNX model there."""
    for name in (*(f"{PROGRAM_NAME}{suffix}" for suffix in (".json", ".pdiparams")), PARITY_FILE):
        (folder / name).unlink(missing_ok=True)
    for file in model.files:
        shutil.copyfile(file, folder / file.name)
