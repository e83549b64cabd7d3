"""The pairing of feeds and fetches of two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from convert.inspection.subject import Subject
from convert.programs.program_feeds import Array
from convert.programs.runners import Runner
from convert.proof.target import Target
from pipeline.errors import ConversionError
from pipeline.models.serving_model import Variable


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
