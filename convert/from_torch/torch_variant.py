"""Keeps a PyTorch model file beside the serving model that was made of it, for `engine: auto`."""

from __future__ import annotations

import shutil
from pathlib import Path

from convert.programs.inference_program import read_program
from convert.programs.runners import ModelRunner, program_runner
from convert.proof.padding import prove_declared
from convert.proof.parity import ParityReport, compare, write_reports
from convert.proof.target import create_model_target, named_padding
from convert.result import ConversionOptions
from convert.steps.conversion_environment import missing_packages
from pipeline.errors import ServingError
from pipeline.models.additions import PARITY_FILE
from pipeline.models.serving_model import SERVER_FOLDER, find_model_files, load_serving_model
from pipeline.models.variants import FOLDER, as_variant, write_record

NAME = "pytorch"


def add_torch_variant(
    model: Path, file: Path, shown_path: Path, options: ConversionOptions
) -> tuple[ParityReport, ...]:
    """Copy a PyTorch model file beside the ONNX serving model in folder `model` that was made of it.

    Returns the comparison reports. shown_path: the folder's later name, for messages. Without PyTorch here no
    copy is made. If the outputs differ, the reason is printed, no copy is left, and the result is empty.
    """
    if missing_packages(["torch"]):
        return ()
    place = model / SERVER_FOLDER / FOLDER / NAME
    try:
        place.mkdir(parents=True)
        return _write_variant(model, file, place, options)
    except ServingError as exc:
        shutil.rmtree(place.parent)
        why = exc.message.replace(str(model), str(shown_path)).rstrip(".")
        options.steps.say(
            f"There is no PyTorch form beside the model: {why.removesuffix('; nothing was written')}."
        )
        return ()


def _write_variant(
    directory: Path, file: Path, place: Path, options: ConversionOptions
) -> tuple[ParityReport, ...]:
    model = load_serving_model(directory)
    program = read_program(model.directory)
    suffix = ".pt2" if file.suffix == ".pt2" else ".pt"
    shutil.copyfile(file, place / f"model{suffix}")
    files = find_model_files(place, NAME)
    options.steps.step("Parity of ONNX and PyTorch")
    pytorch = ModelRunner(as_variant(model, NAME, files))
    target, names = create_model_target(model, program), [fetch.alias for fetch in model.fetches]
    batches = options.proof_inputs.batches(target)
    reports = [
        compare("ONNX to PyTorch", names, program_runner(program), pytorch, batches, options.tolerance)
    ]
    if padding := named_padding(model):
        rows = options.proof_inputs.rows(target, padding)
        report, _ = prove_declared(
            pytorch, names, target, rows, padding,
            checks_ids=False, tolerance=options.tolerance, step="padding in PyTorch",
        )  # fmt: skip
        reports.append(report)
    for report in reports:
        report.require()
    write_reports(place / PARITY_FILE, reports)
    write_record(place, [files.program], program.files)
    return tuple(reports)
