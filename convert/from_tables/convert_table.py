"""Converts a scikit-learn, LightGBM or XGBoost model to ONNX, with notes about its columns and classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from convert.from_tables.pickle_facts import (
    SCIKIT_LEARN_NEEDS,
    PickleFacts,
    describe_mismatch,
    read_pickle_facts,
    require_environment,
)
from convert.from_tables.table_model import MODEL_FILE, ROWS_FILE
from convert.output.staging import check_replaceable, hash_sources, staged, write_stamp
from convert.programs.program_feeds import parse_input_spec
from convert.proof.parity import ParityReport, parse_report, write_reports
from convert.result import Conversion, ConversionOptions, find_current_result
from convert.steps.isolation import run_isolated
from convert.to_serving.notes import ModelNotes, write_notes
from pipeline.errors import ConversionError, ParityError
from pipeline.models.additions import PARITY_FILE
from pipeline.models.description import INPUTS_KEY, OUTPUTS_KEY

PICKLES = (".joblib", ".pkl", ".pickle")
_HEAD_BYTES = 64


@dataclass(frozen=True)
class TableSource:
    """A file with a scikit-learn, LightGBM or XGBoost model, and the packages that read it."""

    path: Path
    library: str
    needs: tuple[str, ...]  # packages that the conversion imports
    runs_code: bool = False  # whether loading the file runs code


def table_source(path: Path) -> TableSource | None:
    """Detect a scikit-learn, LightGBM or XGBoost model in a file; return None for other files."""
    suffix = path.suffix.lower()
    if suffix in PICKLES:
        return TableSource(path, "scikit-learn", SCIKIT_LEARN_NEEDS, runs_code=True)
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).lstrip()
    except OSError:
        return None
    if suffix in (".txt", ".lgb", ".model") and head.startswith(b"tree\n"):
        return TableSource(path, "LightGBM", ("lightgbm", "onnxmltools", "onnx"))
    if (suffix in (".json", ".ubj") and b'"learner"' in head) or (suffix == ".ubj" and b"learner" in head):
        return TableSource(path, "XGBoost", ("xgboost", "onnxmltools", "onnx"))
    return None


def require_trust(source: TableSource, trusted: bool) -> None:
    """Raise ConversionError for a pickle file unless it is `trusted`, because loading a pickle runs code."""
    if source.runs_code and not trusted:
        raise ConversionError(
            f"{source.path} is a pickle: loading it runs whatever code stands in it. Where you know who "
            "wrote it, add --trust; LightGBM's .txt and XGBoost's .json hold no code."
        )


def convert_table(
    source: TableSource,
    out: Path,
    *,
    input_spec: str = "",
    trusted: bool = False,
    options: ConversionOptions | None = None,
) -> Conversion:
    """Convert a model of tabular data to model.onnx in `out`, with its notes and the rows of the comparison.

    `input_spec` names the columns and their dtypes if the model does not. `trusted` allows loading a pickle,
    which runs code. Raises ConversionError for an unusable model, ParityError when the outputs differ.
    """
    options = options or ConversionOptions()
    require_trust(source, trusted)
    check_replaceable(out)
    specs = parse_input_spec(input_spec) if input_spec else ()
    facts = read_pickle_facts(source.path) if source.runs_code else PickleFacts()
    needs = (*source.needs, *facts.packages)
    require_environment(source.path, facts, needs, options)
    settings = {"input_spec": input_spec, "tolerance": options.tolerance, "library": source.library}
    fingerprint = hash_sources([source.path, *options.sample], settings)
    current = find_current_result(out, fingerprint, f"would convert {source.path} to {out}", options)
    if current is not None:
        return current
    with staged(out) as folder:
        arguments = {
            "source": str(source.path.resolve()),
            "library": source.library,
            "out": str(folder),
            "columns": [[spec.name, spec.dtype] for spec in specs],
            "sample": [str(path.resolve()) for path in options.sample],
            "tolerance": options.tolerance,
        }
        with _versions_named(source, facts, needs, options):
            exported, report = _export(arguments, source, needs, options)
        write_reports(folder / PARITY_FILE, [report])
        write_notes(folder, _notes(exported))
        write_stamp(folder, fingerprint, {"source": str(source.path)})
    return Conversion(out, True, f"{out / MODEL_FILE} holds the ONNX model", (report,))


def _export(
    arguments: dict[str, Any], source: TableSource, needs: Sequence[str], options: ConversionOptions
) -> tuple[dict[str, Any], ParityReport]:
    """Run `table_step` in a separate process. Returns its result and the comparison report.

    Raises ParityError if outputs differ.
    """
    exported = run_isolated(
        "convert.from_tables.table_steps:table_step",
        arguments,
        converter=source.library,
        needs=needs,
        steps=options.steps,
        timeout_s=options.step_timeout_s,
    )
    report = parse_report(exported["report"])
    report.require()
    return exported, report


@contextmanager
def _versions_named(
    source: TableSource, facts: PickleFacts, needs: Sequence[str], options: ConversionOptions
) -> Iterator[None]:
    """Context manager: add a scikit-learn version mismatch to a ConversionError, or print it as warning."""
    failure: ConversionError | None = None
    try:
        yield
    except ConversionError as exc:
        failure = exc
    mismatch = describe_mismatch(source.path, facts, needs, options)
    if mismatch and failure is not None and not isinstance(failure, ParityError):
        raise ConversionError(f"{failure.message.rstrip('.')}. {mismatch}") from failure
    if mismatch:
        options.steps.say(f"Warning: {mismatch}")
    if failure is not None:
        raise failure


def with_rows(folder: Path, options: ConversionOptions) -> ConversionOptions:
    """Return options with proof_rows.npz of a folder as their sample; unchanged options without this file."""
    rows = folder / ROWS_FILE
    return replace(options, sample=(rows,)) if rows.is_file() else options


def _notes(exported: dict[str, Any]) -> ModelNotes:
    labels: Sequence[str] = exported["labels"]
    return ModelNotes(
        task="tabular-classification" if labels else "tabular-regression",
        architecture=exported["class"],
        labels=tuple(labels),
        described={INPUTS_KEY: exported["inputs"], OUTPUTS_KEY: exported["outputs"]},
    )
