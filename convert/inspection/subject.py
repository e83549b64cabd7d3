"""One side of a check: a Paddle program, an ONNX model or a serving model, run by the names callers use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from convert.programs.feeds import Array, Feeds
from convert.programs.input_spec import TensorSpec
from convert.programs.program import read_program
from convert.programs.runners import program_runner, serving_runner
from convert.proof.parity import Runner
from pipeline.errors import ConversionError
from pipeline.serving_model import SERVER_CONF, SERVER_FOLDER, Padding, Variable, load_serving_model


@dataclass(frozen=True)
class Subject:
    """A model that can be run.

    `run` takes feeds by their aliases. `padding` is what a serving model declares. `id_limits` (by alias) are
    the lengths of the embeddings that feeds are looked up in.
    """

    source: Path
    feeds: tuple[Variable, ...]
    fetches: tuple[Variable, ...]
    id_limits: Mapping[str, int]
    run: Runner
    padding: Padding | None = None


def serving_folder(source: Path) -> Path | None:
    """The folder with a serving model's prototxt, at `source` or below it; None if there is none."""
    for folder in (source, source / SERVER_FOLDER):
        if (folder / SERVER_CONF).is_file():
            return folder
    return None


def open_subject(source: Path) -> Subject:
    """Load a model. Raises ConversionError or ConfigError for what is none."""
    folder = serving_folder(source)
    if folder is not None:
        return _serving_subject(source, folder)
    program = read_program(source)
    feeds, fetches = (
        tuple(Variable(spec.name, spec.name, spec.dtype, spec.shape) for spec in specs)
        for specs in (program.feeds, program.fetches)
    )
    dtypes = {feed.name: feed.numpy_dtype for feed in feeds}
    own = program_runner(program)

    def run(arrays: Mapping[str, Array]) -> Sequence[Array]:
        # The other side's feeds may be of int32 where these are of int64.
        return own({name: array.astype(dtypes[name], copy=False) for name, array in arrays.items()})

    return Subject(source, feeds, fetches, program.id_limits, run)


def open_program(folder: Path) -> Subject:
    """The program in a serving model's folder, run as it is written, by the names that callers use."""
    return _described(folder, folder, program_runner(read_program(folder)))


def _serving_subject(source: Path, folder: Path) -> Subject:
    return _described(source, folder, serving_runner(folder))


def _described(source: Path, folder: Path, own: Runner) -> Subject:
    """As the serving model in `folder` describes it; `own` takes feeds by the program's names."""
    model = load_serving_model(folder)
    limits = read_program(folder).id_limits
    names = {feed.alias: feed.name for feed in model.feeds}
    return Subject(
        source,
        model.feeds,
        model.fetches,
        {alias: limits[name] for alias, name in names.items() if name in limits},
        lambda arrays: own({names[alias]: array for alias, array in arrays.items()}),
        model.padding,
    )


def as_asked(candidate: Subject, reference: Subject) -> Runner:
    """Runs the candidate with the reference's feeds, and gives its outputs in the reference's order.

    Feeds and fetches belong together by alias, else by the program's own name, else by their order. Raises
    ConversionError where they can't.
    """
    feeds = _paired("input", reference, candidate, reference.feeds, candidate.feeds)
    fetches = _paired("output", reference, candidate, reference.fetches, candidate.fetches)
    place = {fetch.alias: number for number, fetch in enumerate(candidate.fetches)}

    def run(arrays: Mapping[str, Array]) -> list[Array]:
        outputs = candidate.run({other.alias: arrays[one.alias] for one, other in feeds})
        return [outputs[place[other.alias]] for _, other in fetches]

    return run


def common_specs(reference: Subject, candidate: Subject) -> tuple[tuple[TensorSpec, ...], dict[str, int]]:
    """The feeds that suit both, by the reference's aliases, and their id limits."""
    specs, limits = [], {}
    for one, other in _paired("input", reference, candidate, reference.feeds, candidate.feeds):
        shape = tuple(max(a, b) if -1 in (a, b) else a for a, b in zip(one.shape, other.shape, strict=True))
        specs.append(TensorSpec(one.alias, one.dtype, shape))
        known = [reference.id_limits.get(one.alias), candidate.id_limits.get(other.alias)]
        if any(known):
            limits[one.alias] = min(limit for limit in known if limit)
    return tuple(specs), limits


def given_feeds(subject: Subject, arrays: Mapping[str, Array], file: Path) -> Feeds:
    """The arrays of a file as the subject's feeds. Raises ConversionError for missing and foreign ones."""
    wanted = {feed.alias: feed for feed in subject.feeds}
    if arrays.keys() != wanted.keys():
        raise ConversionError(
            f"{file} holds {', '.join(sorted(arrays)) or 'nothing'}, but {subject.source} takes "
            f"{', '.join(wanted)}; store one array for each under its name."
        )
    for alias, feed in wanted.items():
        if not _holds(feed, arrays[alias]):
            raise ConversionError(
                f"{file}: {alias} is {arrays[alias].dtype}{list(arrays[alias].shape)}, but {subject.source} "
                f"takes {feed.dtype}{list(feed.shape)}; store it so."
            )
    return {alias: arrays[alias].astype(feed.numpy_dtype, copy=False) for alias, feed in wanted.items()}


def _holds(feed: Variable, array: Array) -> bool:
    """Whether an array can be a feed without losing values: int64 for int32 may, if its numbers fit."""
    dtype = np.dtype(feed.numpy_dtype)
    if array.ndim != len(feed.shape) and not feed.is_lod:
        return False
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        return bool(array.min() >= np.iinfo(dtype).min and array.max() <= np.iinfo(dtype).max)
    return np.can_cast(array.dtype, dtype, "same_kind")


def _paired(
    kind: str,
    reference: Subject,
    candidate: Subject,
    left: Sequence[Variable],
    right: Sequence[Variable],
) -> list[tuple[Variable, Variable]]:
    for key in ("alias", "name"):
        others = {getattr(variable, key): variable for variable in right}
        if {getattr(variable, key) for variable in left} == others.keys():
            pairs = [(variable, others[getattr(variable, key)]) for variable in left]
            break
    else:
        alike = len(left) == len(right) and all(map(_same_rank, left, right))
        foreign = {variable.alias for variable in left}.isdisjoint(variable.alias for variable in right)
        pairs = list(zip(left, right, strict=True)) if alike and foreign else []
    clash = next((pair for pair in pairs if not _same_rank(*pair)), None)
    if not pairs or clash:
        raise ConversionError(
            f"{reference.source} and {candidate.source} have no {kind}s in common: "
            f"{', '.join(map(_told, left))} and {', '.join(map(_told, right))}; compare forms of one model."
        )
    return pairs


def _same_rank(one: Variable, other: Variable) -> bool:
    return one.is_lod or other.is_lod or len(one.shape) == len(other.shape)


def _told(variable: Variable) -> str:
    return f"{variable.alias} {variable.dtype}{list(variable.shape)}"
