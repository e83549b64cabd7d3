"""The conversion of a Paddle program to an ONNX model with equal outputs."""

from __future__ import annotations

from pathlib import Path

from convert.output.staging import staged
from convert.output.stamp import check_replaceable, hash_sources, write_stamp
from convert.paddle_onnx.paddle2onnx_step import OPSET, OPSETS
from convert.programs.engines import paddle_version
from convert.programs.inference_program import PROTOBUF_BYTES, InferenceProgram, read_program
from convert.programs.runners import program_runner
from convert.proof.parity import compare
from convert.proof.parity_report import write_reports
from convert.proof.target import create_target
from convert.result import Conversion, ConversionOptions, find_current_result
from convert.steps.conversion_environment import conversion_python
from convert.steps.isolation import ConverterCrashed, run_isolated
from convert.to_serving.notes import NOTES_FILE, carry_notes
from pipeline.errors import ConversionError
from pipeline.models.additions import PARITY_FILE
from pipeline.models.serving_model import SERVER_FOLDER

MODEL_FILE = "model.onnx"
CONVERTER = "paddle2onnx"
NEEDS = (CONVERTER, "onnx", "onnxruntime")


def convert_to_onnx(
    source: Path, out: Path, *, opset: int = OPSET, options: ConversionOptions | None = None
) -> Conversion:
    """Write the program of `source`, an inference directory or a serving model, to `out` as model.onnx.

    Inputs and outputs keep the program's names. `opset` is raised if an operator needs a later opset. Raises
    ConversionError for an unusable program, ParityError when the outputs differ.
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
        batches = options.inputs.batches(create_target(program))
        paddle, onnx = program_runner(program), program_runner(read_program(folder / MODEL_FILE))
        report = compare("Paddle to ONNX", names, paddle, onnx, batches, options.tolerance)
        report.require()
        write_reports(folder / PARITY_FILE, [report])
        if notes.is_file():
            carry_notes(notes.parent, folder, names)
        write_stamp(folder, fingerprint, {"source": str(source)})
    return Conversion(out, True, f"{out / MODEL_FILE} holds the ONNX model", (report,))


def readable_program(source: Path) -> InferenceProgram:
    """Read the program of an inference directory or a serving model; it must be possible in ONNX."""
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
    """Convert in the conversion environment; an error names the operators that caused it."""
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
