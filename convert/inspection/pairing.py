"""Which feeds and fetches of two models belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from convert.inspection.subject import Subject
from convert.programs.feeds import Array, Feeds
from convert.programs.input_spec import TensorSpec
from convert.programs.runners import Runner
from pipeline.errors import ConversionError
from pipeline.serving_model import Variable


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
