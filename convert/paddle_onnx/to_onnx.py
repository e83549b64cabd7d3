"""Converts a Paddle model to ONNX, into a folder or beside a serving model, and compares the outputs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from convert.output.staging import check_replaceable, hash_sources, staged, write_stamp
from convert.paddle_onnx.paddle2onnx_step import OPSET, OPSETS
from convert.programs.engines import paddle_version
from convert.programs.inference_program import PROTOBUF_BYTES, InferenceProgram, read_program
from convert.programs.runners import program_runner
from convert.proof.parity import ParityReport, compare, write_reports
from convert.proof.target import create_target
from convert.result import Conversion, ConversionOptions, find_current_result
from convert.steps.conversion_environment import conversion_python, missing_packages
from convert.steps.isolation import ConverterCrashed, run_isolated
from convert.to_serving.notes import NOTES_FILE, carry_notes
from convert.to_serving.proven_variant import record_variant
from pipeline.errors import ConversionError, ServingError
from pipeline.models.additions import PARITY_FILE
from pipeline.models.serving_model import SAMPLE_FILE, SERVER_FOLDER, load_serving_model
from pipeline.models.variants import FOLDER

MODEL_FILE = "model.onnx"
CONVERTER = "paddle2onnx"
NEEDS = (CONVERTER, "onnx", "onnxruntime")


def convert_to_onnx(
    source: Path, out: Path, *, opset: int = OPSET, options: ConversionOptions | None = None
) -> Conversion:
    """Convert the Paddle model in `source`, an inference or serving model's folder, to `out`/model.onnx.

    Inputs and outputs keep their names. `opset` is raised if an operator needs a later opset. Raises
    ConversionError for an unusable model, ParityError when the outputs differ.
    """
    options = options or ConversionOptions()
    steps = options.steps
    if out.suffix == ".onnx":
        raise ConversionError(
            f"{out} is to be a folder, for {MODEL_FILE} and its report; name it without .onnx."
        )
    if opset not in OPSETS:
        raise ConversionError(f"opset {opset} can't be written; name one from {OPSETS[0]} to {OPSETS[-1]}.")
    check_replaceable(out)
    conversion_python(NEEDS)
    steps.step("Reading the Paddle program")
    program = readable_program(source)
    settings = {
        "opset": opset,
        "paddle": paddle_version(),
        "tolerance": options.tolerance,
        "lengths": options.lengths,
    }
    notes = program.program.parent / NOTES_FILE
    extra_files = [*([notes] if notes.is_file() else []), *options.sample]
    fingerprint = hash_sources([*program.files, *extra_files], settings)
    current = find_current_result(out, fingerprint, f"would convert {program.program} to {out}", options)
    if current is not None:
        return current
    with staged(out) as folder:
        export_onnx(program, folder / MODEL_FILE, opset, options)
        steps.step("Parity of Paddle and ONNX")
        names = [fetch.name for fetch in program.fetches]
        batches = options.proof_inputs.batches(create_target(program))
        paddle, onnx = program_runner(program), program_runner(read_program(folder / MODEL_FILE))
        report = compare("Paddle to ONNX", names, paddle, onnx, batches, options.tolerance)
        report.require()
        write_reports(folder / PARITY_FILE, [report])
        if notes.is_file():
            carry_notes(notes.parent, folder, names)
        write_stamp(folder, fingerprint, {"source": str(source)})
    return Conversion(out, True, f"{out / MODEL_FILE} holds the ONNX model", (report,))


def readable_program(source: Path) -> InferenceProgram:
    """Read the Paddle model in a folder and check that it can become ONNX.

    Raises ConversionError for an ONNX model, LoD inputs, more than 2 GB of weights, and unknown file formats.
    """
    served = source / SERVER_FOLDER
    program = read_program(served if served.is_dir() else source)
    if program.format == "onnx":
        raise ConversionError(f"{program.program} is an ONNX model already; serve it as it is.")
    if program.ragged:
        raise ConversionError(
            f"{program.program}: feed {min(program.ragged)!r} holds sequences (LoD), which ONNX lacks; "
            "serve the model with Paddle."
        )
    size = program.params.stat().st_size if program.params else 0
    if size > PROTOBUF_BYTES:
        raise ConversionError(
            f"{program.params} has {size / 1e9:.1f} GB of weights, more than the 2 GB that {CONVERTER} can "
            "write; serve the model with Paddle."
        )
    if program.program.suffix not in (".json", ".pdmodel"):
        raise ConversionError(
            f"{program.program} is not a *.json or *.pdmodel program, which {CONVERTER} reads; "
            "serve the model with Paddle."
        )
    return program


def export_onnx(program: InferenceProgram, file: Path, opset: int, options: ConversionOptions) -> None:
    """Convert a Paddle model to the ONNX file `file` in a separate process with the converters' packages.

    Raises ConversionError, which names the operators that can't be converted.
    """
    try:
        written = run_isolated(
            "convert.paddle_onnx.paddle2onnx_step:export_step",
            {
                "program": str(program.program),
                "params": str(program.params or ""),
                "fetches": [fetch.name for fetch in program.fetches],
                "out": str(file),
                "opset": opset,
            },
            converter=CONVERTER,
            needs=NEEDS,
            steps=options.steps,
            timeout_s=options.step_timeout_s,
        )
    except ConversionError as exc:
        lacking = run_isolated(
            "convert.paddle_onnx.paddle2onnx_step:unsupported_step",
            {"program": str(program.program)},
            converter=CONVERTER,
            needs=NEEDS,
        )
        if not lacking["operators"] and isinstance(exc, ConverterCrashed):
            raise ConversionError(
                f"{program.program}: {exc.message.rstrip('.')}; serve the model with Paddle, or write it "
                "without."
            ) from exc
        if not lacking["operators"]:
            raise
        raise ConversionError(
            f"{program.program}: paddle2onnx {lacking['version']} has no ONNX form of "
            f"{', '.join(lacking['operators'])}; serve the model with Paddle, or write it without."
        ) from exc
    if written > opset:
        options.steps.say(f"Opset {written}: an operator of the model needs more than {opset}.")


NAME = "onnx"
_ENGINE = "onnxruntime"


def can_make_onnx() -> bool:
    """Return whether paddle2onnx is installed, here or in the conversion environment."""
    try:
        return bool(conversion_python(NEEDS))
    except ConversionError:
        return False


def add_onnx_variant(model: Path, shown_path: Path, options: ConversionOptions) -> tuple[ParityReport, ...]:
    """Write an ONNX copy of the serving model in folder `model` beside its Paddle files.

    Returns the comparison reports. shown_path: the folder's later name, for messages. If the conversion fails
    or the outputs differ, the reason is printed, the copy is removed, and the result is empty.
    """
    if not can_make_onnx():
        options.steps.say(
            "ONNX Runtime and OpenVINO often run a model faster than Paddle; its ONNX form is made where "
            f"{CONVERTER} is installed ({' '.join(missing_packages(NEEDS))} is missing: make convert-env)."
        )
        return ()
    place = model / SERVER_FOLDER / FOLDER / NAME
    try:
        place.mkdir(parents=True)
        return _write_variant(model, place, options)
    except ServingError as exc:
        shutil.rmtree(place.parent)
        why = (
            exc.message.replace(str(model), str(shown_path)).rstrip(".").removesuffix("; nothing was written")
        )
        options.steps.say(f"There is no ONNX form beside the model: {why}.")
        return ()


def _write_variant(directory: Path, place: Path, options: ConversionOptions) -> tuple[ParityReport, ...]:
    program = readable_program(directory)
    model = load_serving_model(directory)
    export_onnx(program, place / MODEL_FILE, OPSET, options)
    stored_sample = model.directory / SAMPLE_FILE
    if options.sample and stored_sample.is_file():  # texts would need the tokenizer of the source
        options = replace(options, sample=(stored_sample,))
    return record_variant(place, ("Paddle", "ONNX"), model, program, options, engine=_ENGINE, checks_ids=True)
