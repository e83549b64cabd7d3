"""Writes an int8 copy of a serving model beside the fp32 model, from which `precision: auto` may choose."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from convert.paddle_onnx.to_onnx import MODEL_FILE
from convert.precision.onnx_steps import quantise
from convert.precision.precisions import BOUNDS, CALIBRATED, ONNX_RUNTIME
from convert.programs.inference_program import read_program
from convert.programs.program_feeds import Feeds
from convert.programs.runners import ModelRunner
from convert.proof.padding import padding_parity
from convert.proof.parity import ParityReport, compare, judge_by, write_reports
from convert.proof.target import create_model_target, named_padding
from convert.result import ConversionOptions
from pipeline.errors import ConversionError, ServingError
from pipeline.models.additions import PARITY_FILE
from pipeline.models.serving_model import SAMPLE_FILE, SERVER_FOLDER, find_model_files
from pipeline.models.variants import FOLDER, INT8, as_variant, load_for_engine, write_record

NAME = "int8"
_MAX_ROWS, _BATCH_ROWS = 512, 8  # of the sample


def check_sample(options: ConversionOptions) -> None:
    """Raise ConversionError if `options` names no sample of real inputs, which int8 calibration needs."""
    if not options.sample:
        raise ConversionError(
            "--int8 finds the ranges of a model in real inputs: name a file of them with --sample, of 256 "
            "rows or more, by which precision: auto can tell whether int8 answers alike."
        )


def add_int8_variant(model: Path, shown_path: Path, options: ConversionOptions) -> tuple[ParityReport, ...]:
    """Write an int8 copy of the serving model in folder `model` beside its fp32 files.

    Returns the comparison reports. shown_path: the folder's later name, for messages. If the conversion
    fails, or the outputs differ by more than int8 allows, the reason is printed, the copy is removed, and the
    result is empty.
    """
    place = model / SERVER_FOLDER / FOLDER / NAME
    try:
        place.mkdir(parents=True)
        return _write_variant(model, place, options)
    except ServingError as exc:
        shutil.rmtree(place)
        with contextlib.suppress(OSError):  # other forms are in it
            place.parent.rmdir()
        why = (
            exc.message.replace(str(model), str(shown_path)).rstrip(".").removesuffix("; nothing was written")
        )
        options.steps.say(f"There is no int8 form beside the model: {why}.")
        return ()


def _write_variant(directory: Path, place: Path, options: ConversionOptions) -> tuple[ParityReport, ...]:
    fp32 = load_for_engine(directory, ONNX_RUNTIME)
    stored_sample = fp32.directory / SAMPLE_FILE
    batches = _read_stored_rows(stored_sample)
    with tempfile.TemporaryDirectory() as scratch:
        onnx_file = Path(scratch, MODEL_FILE)
        quantise(CALIBRATED, fp32.program, onnx_file, options, batches, Path(scratch))
        shutil.copyfile(onnx_file, place / MODEL_FILE)
    options.steps.step("Parity of fp32 and int8")
    names = [fetch.alias for fetch in fp32.fetches]
    run = ModelRunner(as_variant(fp32, NAME, find_model_files(place, ONNX_RUNTIME), INT8))
    reports = [compare(f"fp32 to {INT8}", names, ModelRunner(fp32), run, batches)]
    if padding := named_padding(fp32):
        target = create_model_target(fp32, read_program(fp32.program))
        rows = replace(options, sample=(stored_sample,)).proof_inputs.rows(target, padding)
        reports.append(padding_parity(run, names, rows, padding, step=f"padding in {INT8}")[0])
    reports = [judge_by(report, BOUNDS[CALIBRATED]) for report in reports]
    for report in reports:
        report.require()
    write_reports(place / PARITY_FILE, reports)
    write_record(place, [place / MODEL_FILE], read_program(fp32.directory).files, INT8)
    return tuple(reports)


def _read_stored_rows(sample: Path) -> list[Feeds]:
    """Read the input rows of sample.npz in batches of 8, at most 512 rows.

    Raises ConversionError if there is no such file.
    """
    if not sample.is_file():
        raise ConversionError("the sample has no rows that could be run by themselves")
    with np.load(sample, allow_pickle=False) as arrays:
        rows = {name: arrays[name] for name in arrays.files}
    count = min(_MAX_ROWS, len(next(iter(rows.values()))))
    return [
        {name: array[start : start + _BATCH_ROWS] for name, array in rows.items()}
        for start in range(0, count, _BATCH_ROWS)
    ]
