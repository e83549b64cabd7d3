"""The two sides of a check: Paddle programs, ONNX models or serving models, and their pairing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from convert.programs.inference_program import read_program, serving_folder
from convert.programs.program_feeds import Array
from convert.programs.runners import Runner, program_runner, serving_runner
from convert.proof.target import Target
from pipeline.errors import ConversionError
from pipeline.models.serving_model import Padding, Variable, load_serving_model


@dataclass(frozen=True)
class Subject:
    """A model of a check, with its runner."""

    source: Path
    feeds: tuple[Variable, ...]
    fetches: tuple[Variable, ...]
    id_limits: Mapping[str, int]  # by alias: rows of the embedding that looks up a feed
    run: Runner  # takes feeds by their aliases
    folder: Path  # of its files, with the tokenizer's
    padding: Padding | None = None  # as a serving model declares it
    checks_ids: bool = False  # whether its engine rejects ids beyond the limits


def open_subject(source: Path) -> Subject:
    """Load a model. Raises ConversionError or ConfigError for another file."""
    folder = serving_folder(source)
    if folder is not None:
        return _serving_subject(source, folder)
    program = read_program(source)
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
    """Load the unoptimised program in a serving model's folder, with feeds by their aliases."""
    return _create_subject(folder, folder, program_runner(read_program(folder)))


def _serving_subject(source: Path, folder: Path) -> Subject:
    return _create_subject(source, folder, serving_runner(folder))


def _create_subject(source: Path, folder: Path, run: Runner) -> Subject:
    """Create the Subject of the serving model in `folder`; `run` takes feeds by the program's names."""
    model = load_serving_model(folder)
    program = read_program(folder)
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
    """Return a runner of the candidate that takes the reference's feeds and keeps the reference's order.

    Feeds and fetches are paired by alias, else by the program's own name, else by their order. Raises
    ConversionError for models without a pairing.
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
    """Describe feeds that suit both models, by the reference's aliases."""
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
    """Describe feeds by the candidate's aliases; sample files use the reference's aliases."""
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
