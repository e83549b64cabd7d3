"""Which feeds and fetches of two models belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from convert.inspection.subject import Subject
from convert.programs.program_feeds import Array
from convert.programs.runners import Runner
from convert.proof.target import Target
from pipeline.errors import ConversionError
from pipeline.models.serving_model import Variable


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


def common_target(reference: Subject, candidate: Subject) -> Target:
    """For inputs that suit both, by the reference's aliases."""
    feeds, limits = [], {}
    for one, other in _paired("input", reference, candidate, reference.feeds, candidate.feeds):
        shape = tuple(max(a, b) if -1 in (a, b) else a for a, b in zip(one.shape, other.shape, strict=True))
        longest = min(filter(None, (one.longest, other.longest)), default=None, key=lambda pair: pair[1])
        feeds.append(replace(one, name=one.alias, alias=one.name, shape=shape, longest=longest))
        known = [reference.id_limits.get(one.alias), candidate.id_limits.get(other.alias)]
        if any(known):
            limits[one.alias] = min(limit for limit in known if limit)
    return Target(reference.source, tuple(feeds), limits, reference.folder)


def candidate_target(reference: Subject, candidate: Subject) -> Target:
    """For inputs by the candidate's aliases; files have them under the reference's."""
    feeds = tuple(
        replace(other, name=other.alias, alias=one.alias)
        for one, other in _paired("input", reference, candidate, reference.feeds, candidate.feeds)
    )
    return Target(candidate.source, feeds, candidate.id_limits, candidate.folder)


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
            f"{', '.join(map(_describe_variable, left))} and {', '.join(map(_describe_variable, right))}; "
            "compare forms of one model."
        )
    return pairs


def _same_rank(one: Variable, other: Variable) -> bool:
    return one.is_lod or other.is_lod or len(one.shape) == len(other.shape)


def _describe_variable(variable: Variable) -> str:
    return f"{variable.alias} {variable.dtype}{list(variable.shape)}"
