"""The ONNX form of a serving model beside its Paddle program, for engines that do not run that."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from convert.paddle_onnx.paddle2onnx_step import OPSET
from convert.paddle_onnx.to_onnx import CONVERTER, MODEL_FILE, NEEDS, export_onnx, readable_program
from convert.programs.runners import ModelRunner, program_runner
from convert.proof.padding import prove_declared
from convert.proof.parity import compare
from convert.proof.parity_report import ParityReport
from convert.proof.stored_reports import write_reports
from convert.proof.target import named_padding, target_of_model
from convert.result import ConversionOptions
from convert.steps.conversion_environment import conversion_python, missing_packages
from pipeline.errors import ConversionError, ServingError
from pipeline.models.additions import PARITY_FILE
from pipeline.models.serving_model import SAMPLE_FILE, SERVER_FOLDER, find_model_files, load_serving_model
from pipeline.models.variants import FOLDER, as_variant, write_record

NAME = "onnx"
_ENGINE = "onnxruntime"


def can_make_onnx() -> bool:
    """Whether the converter is here, or in the conversion environment."""
    try:
        return bool(conversion_python(NEEDS))
    except ConversionError:
        return False


def add_onnx_variant(model: Path, told: Path, options: ConversionOptions) -> tuple[ParityReport, ...]:
    """Write the ONNX form of the serving model in `model` beside its program, and what proves it.

    told: the folder's later name, for sentences. Where there is none to be had, or it answers otherwise, the
    model is served as it is, and a line says why; then there are no reports.
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
        return _write(model, place, options)
    except ServingError as exc:
        shutil.rmtree(place.parent)
        why = exc.message.replace(str(model), str(told)).rstrip(".").removesuffix("; nothing was written")
        options.steps.say(f"There is no ONNX form beside the model: {why}.")
        return ()


def _write(directory: Path, place: Path, options: ConversionOptions) -> tuple[ParityReport, ...]:
    program = readable_program(directory)
    model = load_serving_model(directory)
    export_onnx(program, place / MODEL_FILE, OPSET, options)
    options.steps.step("Parity of Paddle and ONNX")
    target, names = target_of_model(model, program), [fetch.alias for fetch in model.fetches]
    onnx = ModelRunner(as_variant(model, NAME, find_model_files(place, _ENGINE)))
    kept = model.directory / SAMPLE_FILE
    if options.sample and kept.is_file():  # texts would need the tokenizer of the source, which is not here
        options = replace(options, sample=(kept,))
    batches = options.inputs.batches(target)
    reports = [compare("Paddle to ONNX", names, program_runner(program), onnx, batches, options.tolerance)]
    if padding := named_padding(model):
        rows = options.inputs.rows(target, padding)
        report, _ = prove_declared(
            onnx, names, target, rows, padding,
            checks_ids=True, tolerance=options.tolerance, step="padding in ONNX",
        )  # fmt: skip
        reports.append(report)
    for report in reports:
        report.require()
    write_reports(place / PARITY_FILE, reports)
    write_record(place, [place / MODEL_FILE], program.files)
    return tuple(reports)
