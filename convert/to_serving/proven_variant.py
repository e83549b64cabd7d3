"""Proves another form of a serving model, such as ONNX beside Paddle, and records it for the engines."""

from __future__ import annotations

from pathlib import Path

from convert.programs.inference_program import InferenceProgram
from convert.programs.runners import ModelRunner, program_runner
from convert.proof.padding import prove_declared
from convert.proof.parity import ParityReport, compare, write_reports
from convert.proof.target import create_model_target, named_padding
from convert.result import ConversionOptions
from pipeline.models.additions import PARITY_FILE
from pipeline.models.serving_model import ServingModel, find_model_files
from pipeline.models.variants import as_variant, write_record


def record_variant(
    place: Path,
    titles: tuple[str, str],
    model: ServingModel,
    program: InferenceProgram,
    options: ConversionOptions,
    *,
    engine: str,
    checks_ids: bool,
) -> tuple[ParityReport, ...]:
    """Compare the variant in folder `place` with the model's own program, and write reports and variant.json.

    place: a folder with the variant's name. titles: names of the program and of the variant, for the reports.
    engine: the engine that runs the variant. checks_ids: as in `prove_declared`. Raises ParityError if the
    outputs differ.
    """
    source_title, title = titles
    options.steps.step(f"Parity of {source_title} and {title}")
    target, names = create_model_target(model, program), [fetch.alias for fetch in model.fetches]
    files = find_model_files(place, engine)
    runner = ModelRunner(as_variant(model, place.name, files))
    batches = options.proof_inputs.batches(target)
    step = f"{source_title} to {title}"
    reports = [compare(step, names, program_runner(program), runner, batches, options.tolerance)]
    if padding := named_padding(model):
        rows = options.proof_inputs.rows(target, padding)
        report, _ = prove_declared(
            runner, names, target, rows, padding,
            checks_ids=checks_ids, tolerance=options.tolerance, step=f"padding in {title}",
        )  # fmt: skip
        reports.append(report)
    for report in reports:
        report.require()
    write_reports(place / PARITY_FILE, reports)
    write_record(place, [files.program], program.files)
    return tuple(reports)
