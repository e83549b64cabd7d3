"""The ONNX form of a serving model beside its Paddle program, for other engines."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from convert.paddle_onnx.paddle2onnx_step import OPSET
from convert.paddle_onnx.to_onnx import CONVERTER, MODEL_FILE, NEEDS, export_onnx, readable_program
from convert.programs.runners import ModelRunner, program_runner
from convert.proof.padding import prove_declared
from convert.proof.parity import compare
from convert.proof.parity_report import ParityReport, write_reports
from convert.proof.target import create_model_target, named_padding
from convert.result import ConversionOptions
from convert.steps.conversion_environment import conversion_python, missing_packages
from pipeline.errors import ConversionError, ServingError
from pipeline.models.additions import PARITY_FILE
from pipeline.models.serving_model import SAMPLE_FILE, SERVER_FOLDER, find_model_files, load_serving_model
from pipeline.models.variants import FOLDER, as_variant, write_record

NAME = "onnx"
_ENGINE = "onnxruntime"


def can_make_onnx() -> bool:
    """Return whether the converter is installed, here or in the conversion environment."""
    try:
        return bool(conversion_python(NEEDS))
    except ConversionError:
        return False


def add_onnx_variant(model: Path, shown_path: Path, options: ConversionOptions) -> tuple[ParityReport, ...]:
    """Write the ONNX form of the serving model in `model` beside its program; return its reports.

    shown_path: the folder's later name, for messages. If the form can't be made or its outputs differ, a line
    says why, the model has no ONNX form, and there are no reports.
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
    options.steps.step("Parity of Paddle and ONNX")
    target, names = create_model_target(model, program), [fetch.alias for fetch in model.fetches]
    onnx = ModelRunner(as_variant(model, NAME, find_model_files(place, _ENGINE)))
    stored_sample = model.directory / SAMPLE_FILE
    if options.sample and stored_sample.is_file():  # texts would need the tokenizer of the source
        options = replace(options, sample=(stored_sample,))
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
