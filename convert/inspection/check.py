"""The check of a model: a comparison of its answers with its source or another model."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from convert.inspection.subjects import (
    Subject,
    candidate_target,
    common_target,
    create_candidate_runner,
    open_program,
    open_subject,
)
from convert.output.stamp import STAMP_FILE, restamp
from convert.programs.inference_program import serving_folder
from convert.proof.padding import answers_by_row, parse_padding, prove_declared
from convert.proof.parity import compare
from convert.proof.parity_report import TOLERANCE, ParityReport, judge_by, parse_bounds, summaries
from convert.result import Conversion, ConversionOptions
from pipeline.errors import ConversionError
from pipeline.models.additions import PARITY_FILE
from pipeline.models.digests import SHA256, record_digests, replaced_files
from pipeline.models.serving_model import SERVER_FOLDER, load_serving_model

DEMO = "demo"  # the source in the stamp of the demo


def recorded_source(directory: Path) -> Path | None:
    """Return the source of a serving model; None for a source without a file."""
    stamp = read_record(directory)
    if "source" not in stamp or stamp["source"] == DEMO:
        return None
    source = Path(str(stamp["source"]))
    if not source.exists():
        raise ConversionError(
            f"{directory} was made of {source}, which is not there; name what to compare with: check MODEL "
            f"{directory}."
        )
    return source


def get_source_name(directory: Path) -> str:
    """Return the name of the source for messages."""
    stamp = read_record(directory)
    return str(stamp.get("made_of") or stamp["source"])


def read_record(directory: Path) -> dict[str, Any]:
    """Read the stamp of a result. Raise ConversionError if it has no source."""
    try:
        stamp = json.loads((directory / STAMP_FILE).read_text(encoding="utf-8"))
        if stamp.keys() & {"source", "made_of"}:
            return dict(stamp)
        raise KeyError("source")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ConversionError(
            f"{directory / STAMP_FILE} does not tell what {directory} was made of; name it: check MODEL "
            f"{directory}."
        ) from exc


PARITY, PADDING, BATCH, FILES = "check", "check padding", "check batch", "check files"


def check_serving(directory: Path, *, options: ConversionOptions | None = None) -> Conversion:
    """Compare a serving model with the model that it was made of, and store the reports in its parity.json.

    A model of another precision keeps the bounds of its conversion, unless `options` have a tolerance. Its
    top-1 agreement counts only on a sample: random inputs have no class. After a failed check the service
    does not start, until a later check passes or the model is converted again. If the source can't run here
    (the demo's training, a Layer), the model is compared with its own unoptimised program. The check then
    fails if files differ from the proved files. Raises ConversionError when the source is not recorded or
    missing, or the report can't be written.
    """
    options = options or ConversionOptions()
    folder = serving_folder(directory)
    if folder is None:
        raise ConversionError(f"{directory} is no serving model; name two models: check A B.")
    target = folder / PARITY_FILE
    if not os.access(folder, os.W_OK):
        raise ConversionError(f"{target} can't be written; see to the rights of the folder.")
    root = folder.parent if folder.name == SERVER_FOLDER else folder
    options.steps.step("Loading both models")
    source, candidate = recorded_source(root), open_subject(directory)
    reference = open_program(folder) if source is None else open_subject(source)
    reports = _compare_subjects(reference, candidate, "", options)
    stamp = read_record(root)
    if options.tolerance == TOLERANCE and "bounds" in stamp:
        bounds = parse_bounds(stamp["bounds"])
        bounds = bounds if options.sample else replace(bounds, top1_needed=0.0)
        reports = tuple(judge_by(report, bounds) for report in reports)
    options.steps.step("Digests of its files")
    reference_answer = f"{source} does"
    if source is None:
        files, are_proved = _files_report(folder, options)
        reports += files
        reference_answer = (
            "its own program does without optimisation (what it was made of, "
            f"{get_source_name(root)}, can't be run); {are_proved}"
        )
    passed = all(report.passed for report in reports)
    if passed and source is not None:
        record_digests(folder)
    _store_reports(target, reports)
    restamp(root, current=passed)
    return _outcome(directory, reports, f"{directory} answers as {reference_answer}")


def check_models(
    reference: Path,
    candidate: Path,
    *,
    padding: str = "",
    report: Path | None = None,
    options: ConversionOptions | None = None,
) -> Conversion:
    """Compare two models, each a Paddle inference folder, a serving model or an ONNX model.

    `padding` ("input_ids=0,...") names feeds of a candidate without declared padding; `report` is a file for
    the reports. A sample of `options` has the names of the reference's feeds.
    """
    options = options or ConversionOptions()
    options.steps.step("Loading both models")
    reports = _compare_subjects(open_subject(reference), open_subject(candidate), padding, options)
    if report is not None:
        _store_reports(report, reports)
    return _outcome(candidate, reports, f"{candidate} answers as {reference} does")


def _compare_subjects(
    reference: Subject, candidate: Subject, padding: str, options: ConversionOptions
) -> tuple[ParityReport, ...]:
    run = create_candidate_runner(candidate, reference)
    names = [fetch.alias for fetch in reference.fetches]
    options.steps.step("Parity")
    batches = options.inputs.batches(common_target(reference, candidate))
    parity = compare(PARITY, names, reference.run, run, batches, options.tolerance)
    options.steps.step("Rows alone and together")
    return (parity, *_rows_check(reference, candidate, padding, options))


def _files_report(folder: Path, options: ConversionOptions) -> tuple[tuple[ParityReport, ...], str]:
    """Compare the files with the proved digests; return the report, and a remark for equal files."""
    replaced = replaced_files(load_serving_model(folder), SHA256)
    if replaced is None:
        return (), "it has no digests, so whether its files are those that were proved is not known"
    if not replaced:
        return (ParityReport(FILES, options.tolerance, (), ()),), "its files are those that were proved"
    note = (
        f"{', '.join(replaced)} in {folder} {'are' if replaced[1:] else 'is'} not what was proved; copy the "
        "model again, or convert it anew"
    )
    return (ParityReport(FILES, options.tolerance, (), (), note),), ""


def _rows_check(
    reference: Subject, candidate: Subject, padding: str, options: ConversionOptions
) -> list[ParityReport]:
    """Compare rows alone and in a batch, of different lengths if they may be padded."""
    target = candidate_target(reference, candidate)
    if not target.by_row:
        return []  # requests run alone
    pads = dict(candidate.padding.feeds) if candidate.padding else parse_padding(padding, target.specs)
    rows = options.inputs.rows(target, pads)
    names = [fetch.alias for fetch in candidate.fetches]
    if not pads and not answers_by_row(candidate.run, rows):
        return []  # outputs can't be split into rows
    report, proven = prove_declared(
        candidate.run, names, target, rows, pads,
        checks_ids=candidate.checks_ids, tolerance=options.tolerance, step=PADDING if pads else BATCH,
    )  # fmt: skip
    cuts = dict(proven.fetches)
    declared = dict(candidate.padding.fetches) if candidate.padding else cuts
    if declared != cuts:
        note = f"serving.yml cuts back {declared or 'no output'}, but {cuts or 'none'} grow with their rows"
        report = replace(report, note=note)
    return [report]


def _store_reports(path: Path, reports: Sequence[ParityReport]) -> None:
    """Replace the reports of an earlier check; keep the reports of the conversion."""
    try:
        earlier = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        conversion_reports = [old for old in earlier if old["step"] not in (PARITY, PADDING, BATCH, FILES)]
    except (OSError, ValueError, KeyError, TypeError):
        conversion_reports = []  # unreadable reports are dropped
    partial = path.with_name(f".{path.name}.new")
    try:
        partial.write_text(
            json.dumps([*conversion_reports, *summaries(reports)], indent=2) + "\n", encoding="utf-8"
        )
        partial.replace(path)
    except OSError as exc:
        raise ConversionError(f"{path} can't be written ({exc.strerror}).") from exc
    finally:
        partial.unlink(missing_ok=True)


def _outcome(out: Path, reports: tuple[ParityReport, ...], passed: str) -> Conversion:
    failures = "; ".join(report.failure for report in reports if not report.passed)
    return Conversion(out, False, failures or passed, reports)
