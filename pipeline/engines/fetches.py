"""The fetches of a predictor: which of the model's are returned, and under which names."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.engines.feeds import Array, Fed, input_examples
from pipeline.errors import ConfigError, InvalidInput, ModelFailed
from pipeline.models.serving_model import SERVER_CONF, ServingModel
from pipeline.models.signature import Variable

log = logging.getLogger(__name__)

# What Paddle 2 and Paddle 3 call the outputs of a program, by number, where nobody has named them.
_OLD_FETCH = re.compile(r"save_infer_model/scale_(\d+)(?:\.tmp_\d+)?")
_NUMBERED_FETCH = re.compile(rf"{_OLD_FETCH.pattern}|fetch_name_\d+")


def select_fetches(fetches: Sequence[Variable], aliases: Sequence[str]) -> tuple[Variable, ...]:
    """The model's fetches of these aliases; all where none is given.

    One that is asked for by its old name has that for its alias. Raises ConfigError for one the model lacks.
    """
    selected = []
    for alias in aliases:
        found = find_fetch(fetches, alias)
        if found is None:
            known = ", ".join(variable.alias for variable in fetches)
            raise ConfigError(f"fetch_list: the model has no {alias!r}, only {known}")
        if found.alias != alias:
            log.info("fetch_list: %s is the output that the model calls %s", alias, found.alias)
        selected.append(replace(found, alias=alias))
    return tuple(selected) or tuple(fetches)


def find_fetch(fetches: Sequence[Variable], name: str) -> Variable | None:
    """The fetch of this alias, or None.

    Paddle 2 called the first output `save_infer_model/scale_0.tmp_0` or `.tmp_1`, Paddle 3 calls it
    `fetch_name_0`: a script that asks by an old name still finds it, unless the model's have names of their
    own.
    """
    found = next((variable for variable in fetches if variable.alias == name), None)
    old = _OLD_FETCH.fullmatch(name)
    if found is not None or old is None or int(old[1]) >= len(fetches):
        return found
    numbered = all(_NUMBERED_FETCH.fullmatch(variable.alias) for variable in fetches)
    return fetches[int(old[1])] if numbered else None


def feeds_of_graph(
    model: ServingModel, feeds: Sequence[Variable], fetches: Sequence[Variable]
) -> tuple[Variable, ...]:
    """The described feeds with the graph's own shapes.

    feeds, fetches: what the graph tells. Raises ConfigError for a description that does not belong to it, now
    and not at the first request, and for types that NumPy lacks.
    """
    _refuse_unfeedable(model)
    _compare(model.feeds, feeds, "feed", model)
    _compare(model.fetches, fetches, "fetch", model)
    own = {variable.name: variable.shape for variable in feeds}
    return tuple(dataclasses.replace(v, shape=own[v.name], is_lod=False) for v in model.feeds)


def _refuse_unfeedable(model: ServingModel) -> None:
    for kind, variables in (("feed", model.feeds), ("fetch", model.fetches)):
        for variable in variables:
            if variable.dtype == "bfloat16":
                raise ConfigError(
                    f"{kind} {variable.alias!r} of {model.program} is of type bfloat16, which NumPy lacks: "
                    "export the model with float32 or float16 inputs and outputs"
                )


def _compare(declared: Sequence[Variable], own: Sequence[Variable], kind: str, model: ServingModel) -> None:
    dtypes = {variable.name: variable.dtype for variable in own}
    names = {variable.name for variable in declared}
    missing = names ^ dtypes.keys() if kind == "feed" else names - dtypes.keys()
    where = f"{model.directory / SERVER_CONF} does not fit {model.program.name}: {kind}"
    if missing:
        raise ConfigError(
            f"{where} {min(missing)!r} is only in one of them; the model has {', '.join(dtypes)}"
        )
    for variable in declared:
        if variable.dtype != dtypes[variable.name]:
            raise ConfigError(
                f"{where} {variable.alias!r} is {variable.dtype} there, and {dtypes[variable.name]} in the "
                "model: convert the model with `paddlewheel convert serving`"
            )


_LENGTH = 16  # of axes of feeds that are open besides the batch

Shape = tuple[int, ...]


def measured_fetches(
    program: Path,
    model: Fed,
    fetches: Sequence[Variable],
    own: Sequence[Variable],
    run: Callable[[Mapping[str, Array]], Mapping[str, Array]],
) -> tuple[Variable, ...]:
    """The fetches with the program's own shapes, or those that runs of one row and of two show.

    own: as the program declares them, by name. Nothing is run where all fetches have an open batch axis, or a
    feed has none. run: feeds by alias to fetches by alias.
    """
    declared = {variable.name: variable.shape for variable in own if not variable.has_rows}
    if not any(fetch.name in declared for fetch in fetches):
        return tuple(fetches)
    answers = _of_one_and_two(program, model, run) if all(feed.has_rows for feed in model.feeds) else None
    true = []
    for fetch in fetches:
        shape = declared.get(fetch.name, fetch.shape)
        if answers is not None and fetch.name in declared:
            one, two = (answer[fetch.alias].shape for answer in answers)
            if (by_row := _by_row(shape, one, two)) is not None:
                told = fetch.name, list(shape), list(by_row)
                log.info("%s declares %s as %s, and answers %s: a row for each row fed", program, *told)
                shape = by_row
        true.append(replace(fetch, shape=shape))
    return tuple(true)


def _of_one_and_two(
    program: Path, model: Fed, run: Callable[[Mapping[str, Array]], Mapping[str, Array]]
) -> tuple[Mapping[str, Array], Mapping[str, Array]] | None:
    """The answers to one row and to two; None where made-up feeds do not suit the model."""
    try:
        return run(input_examples(model, 1, _LENGTH)), run(input_examples(model, 2, _LENGTH))
    except (InvalidInput, ModelFailed) as exc:
        log.info("%s can't be run on feeds of ones, to see what it answers: %s", program, exc.message)
        return None


def _by_row(declared: Shape, one: Shape, two: Shape) -> Shape | None:
    """The shape of a fetch that has a row for each row fed; None where it has not."""
    if one[:1] != (1,) or two[:1] != (2,) or len(one) != len(two):
        return None
    told = declared[1:] if len(declared) == len(one) else one[1:]
    lengths = zip(told, one[1:], two[1:], strict=True)
    return (-1, *(of_one if length == of_one == of_two else -1 for length, of_one, of_two in lengths))
