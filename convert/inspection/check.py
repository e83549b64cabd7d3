"""Compares a serving model's outputs with the model it was made of, or two models with each other."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from convert.output.staging import STAMP_FILE, restamp
from convert.programs.inference_program import read_model, serving_folder
from convert.programs.program_feeds import Array
from convert.programs.runners import Runner, program_runner, serving_runner
from convert.proof.padding import answers_by_row, parse_padding, prove_declared
from convert.proof.parity import TOLERANCE, ParityReport, compare, judge_by, parse_bounds, summaries
from convert.proof.target import Target
from convert.result import Conversion, ConversionOptions
from pipeline.errors import ConversionError
from pipeline.models.additions import PARITY_FILE
from pipeline.models.digests import SHA256, record_digests, replaced_files
from pipeline.models.serving_model import SERVER_FOLDER, Padding, Variable, load_serving_model


@dataclass(frozen=True)
class Subject:
    """A loaded model to be compared, with its inputs and outputs and a function to run it."""

    source: Path
    feeds: tuple[Variable, ...]
    fetches: tuple[Variable, ...]
    id_limits: Mapping[str, int]  # by alias: rows of the embedding that looks up a feed
    run: Runner  # takes feeds by their aliases
    folder: Path  # of its files, with the tokenizer's
    padding: Padding | None = None  # as a serving model declares it
    checks_ids: bool = False  # whether its engine rejects ids beyond the limits


def open_subject(source: Path) -> Subject:
    """Load a serving model or an exported model for a comparison.

    Raises ConversionError or ConfigError if `source` is something else or can't be loaded.
    """
    folder = serving_folder(source)
    if folder is not None:
        return _serving_subject(source, folder)
    program = read_model(source)
    feeds, fetches = (
        tuple(Variable(spec.name, spec.name, spec.dtype, spec.shape) for spec in specs)
        for specs in (program.feeds, program.fetches)
    )
    dtypes = {feed.name: feed.numpy_dtype for feed in feeds}
    program_run = program_runner(program)

    def run(arrays: Mapping[str, Array]) -> Sequence[Array]:
        # The other model's feeds may be int32 where these are int64.
        return program_run({name: array.astype(dtypes[name], copy=False) for name, array in arrays.items()})

    checks = program.format == "onnx"
    folder = program.program.parent
    return Subject(source, feeds, fetches, program.id_limits, run, folder, checks_ids=checks)


def open_program(folder: Path) -> Subject:
    """Load the exported model in a serving model's folder without graph optimisation, for a comparison.

    The inputs are named by their aliases.
    """
    return _create_subject(folder, folder, program_runner(read_model(folder)))


def _serving_subject(source: Path, folder: Path) -> Subject:
    return _create_subject(source, folder, serving_runner(folder))


def _create_subject(source: Path, folder: Path, run: Runner) -> Subject:
    """Describe the serving model in `folder` for a comparison; `run` takes inputs by their graph names."""
    model = load_serving_model(folder)
    program = read_model(folder)
    limits = program.id_limits
    names = {feed.alias: feed.name for feed in model.feeds}
    return Subject(
        source,
        model.feeds,
        model.fetches,
        {alias: limits[name] for alias, name in names.items() if name in limits},
        lambda arrays: run({names[alias]: array for alias, array in arrays.items()}),
        folder,
        model.padding,
        program.format == "onnx",
    )


def create_candidate_runner(candidate: Subject, reference: Subject) -> Runner:
    """Return a function that runs the candidate with the reference model's inputs and output order.

    Inputs and outputs are paired by alias, or else by graph name, or else by their order. Raises
    ConversionError if the two models can't be paired.
    """
    feeds = _pair_variables("input", reference, candidate, reference.feeds, candidate.feeds)
    fetches = _pair_variables("output", reference, candidate, reference.fetches, candidate.fetches)
    place = {fetch.alias: number for number, fetch in enumerate(candidate.fetches)}

    def run(arrays: Mapping[str, Array]) -> list[Array]:
        outputs = candidate.run(
            {candidate_variable.alias: arrays[feed.alias] for feed, candidate_variable in feeds}
        )
        return [outputs[place[candidate_variable.alias]] for _, candidate_variable in fetches]

    return run


def common_target(reference: Subject, candidate: Subject) -> Target:
    """Return the facts about the inputs of two compared models, with the reference's aliases as names.

    Where the models differ, the smaller maximum length and id limit apply.
    """
    feeds, limits = [], {}
    for feed, candidate_feed in _pair_variables(
        "input", reference, candidate, reference.feeds, candidate.feeds
    ):
        shape = tuple(
            max(a, b) if -1 in (a, b) else a for a, b in zip(feed.shape, candidate_feed.shape, strict=True)
        )
        longest = min(
            filter(None, (feed.longest, candidate_feed.longest)), default=None, key=lambda pair: pair[1]
        )
        feeds.append(replace(feed, name=feed.alias, alias=feed.name, shape=shape, longest=longest))
        feed_limits = [reference.id_limits.get(feed.alias), candidate.id_limits.get(candidate_feed.alias)]
        if any(feed_limits):
            limits[feed.alias] = min(limit for limit in feed_limits if limit)
    return Target(reference.source, tuple(feeds), limits, reference.folder)


def candidate_target(reference: Subject, candidate: Subject) -> Target:
    """Return the facts about the candidate's inputs. Sample files may use the reference's aliases, too."""
    feeds = tuple(
        replace(feed, name=feed.alias, alias=reference_feed.alias)
        for reference_feed, feed in _pair_variables(
            "input", reference, candidate, reference.feeds, candidate.feeds
        )
    )
    return Target(candidate.source, feeds, candidate.id_limits, candidate.folder)


def _pair_variables(
    kind: str,
    reference: Subject,
    candidate: Subject,
    reference_variables: Sequence[Variable],
    candidate_variables: Sequence[Variable],
) -> list[tuple[Variable, Variable]]:
    for key in ("alias", "name"):
        candidates = {getattr(variable, key): variable for variable in candidate_variables}
        if {getattr(variable, key) for variable in reference_variables} == candidates.keys():
            pairs = [(variable, candidates[getattr(variable, key)]) for variable in reference_variables]
            break
    else:
        alike = len(reference_variables) == len(candidate_variables) and all(
            map(_same_rank, reference_variables, candidate_variables)
        )
        foreign = {variable.alias for variable in reference_variables}.isdisjoint(
            variable.alias for variable in candidate_variables
        )
        pairs = list(zip(reference_variables, candidate_variables, strict=True)) if alike and foreign else []
    clash = next((pair for pair in pairs if not _same_rank(*pair)), None)
    if not pairs or clash:
        raise ConversionError(
            f"{reference.source} and {candidate.source} have no {kind}s in common: "
            f"{_describe_variables(reference_variables)} and {_describe_variables(candidate_variables)}; "
            "compare forms of one model."
        )
    return pairs


def _same_rank(variable: Variable, counterpart: Variable) -> bool:
    return variable.is_lod or counterpart.is_lod or len(variable.shape) == len(counterpart.shape)


def _describe_variables(variables: Sequence[Variable]) -> str:
    return ", ".join(f"{v.alias} {v.dtype}{list(v.shape)}" for v in variables)


DEMO = "demo"  # the source in the stamp of the demo


def recorded_source(directory: Path) -> Path | None:
    """Return the path of the model from which a serving model was made, as recorded in convert.json.

    None if the source is not a file, such as a Layer. Raises ConversionError if the file is missing.
    """
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
    """Return the name of the source model in convert.json, for messages."""
    stamp = read_record(directory)
    return str(stamp.get("made_of") or stamp["source"])


def read_record(directory: Path) -> dict[str, Any]:
    """Read convert.json of a conversion's output folder. Raises ConversionError if it names no source."""
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
    """Compare a serving model with its source model, and write the reports to its parity.json.

    A model of another precision keeps the bounds of its conversion, unless `options` have a tolerance. Its
    top-1 agreement counts only on a sample: random inputs have no class. After a failed check the service
    does not start, until a later check passes or the model is converted again. If the source can't run here
    (the demo's training, a Layer), the model is compared with its own graph, run without optimisation. The
    check then fails if files differ from the compared files. Raises ConversionError when the source is not
    recorded or missing, or the report can't be written.
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
    """Compare the outputs of two models, each a Paddle inference folder, a serving model or an ONNX model.

    `padding` ("input_ids=0,...") names inputs of a candidate without declared padding; `report` is a JSON
    file to write. A sample of `options` has the names of the reference's inputs. A failed comparison is not
    raised, but reported in the result.
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
    batches = options.proof_inputs.batches(common_target(reference, candidate))
    parity = compare(PARITY, names, reference.run, run, batches, options.tolerance)
    options.steps.step("Rows alone and together")
    return (parity, *_rows_check(reference, candidate, padding, options))


def _files_report(folder: Path, options: ConversionOptions) -> tuple[tuple[ParityReport, ...], str]:
    """Compare the files' hashes with those in serving.yml.

    Return the report, and a remark for the message.
    """
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
    """Compare rows run alone with rows in a batch, of different lengths if they may be padded.

    Returns one report, or none for a model whose inputs or outputs can't be split into rows.
    """
    target = candidate_target(reference, candidate)
    if not target.by_row:
        return []  # requests run alone
    pads = dict(candidate.padding.feeds) if candidate.padding else parse_padding(padding, target.specs)
    rows = options.proof_inputs.rows(target, pads)
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
    """Write the reports to a JSON file.

    Replace an earlier check's reports, and keep the conversion's reports.
    """
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
