"""Keeps a PyTorch model file beside the serving model that was made of it, for `engine: auto`."""

from __future__ import annotations

import shutil
from pathlib import Path

from convert.programs.inference_program import read_program
from convert.proof.parity import ParityReport
from convert.result import ConversionOptions
from convert.steps.conversion_environment import missing_packages
from convert.to_serving.proven_variant import record_variant
from pipeline.errors import ServingError
from pipeline.models.serving_model import SERVER_FOLDER, load_serving_model
from pipeline.models.variants import FOLDER

NAME = "pytorch"


def add_torch_variant(
    model: Path, file: Path, shown_path: Path, options: ConversionOptions
) -> tuple[ParityReport, ...]:
    """Copy the PyTorch model file into the ONNX serving model that was converted from it.

    Returns the reports that compare the outputs of both. Empty without PyTorch, and if the outputs differ:
    then the reason is printed, and the copy is removed. shown_path: the later name of folder `model`, for
    messages.
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
    return record_variant(place, ("ONNX", "PyTorch"), model, program, options, engine=NAME, checks_ids=False)
