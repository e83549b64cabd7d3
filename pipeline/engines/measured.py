"""The true shapes of a model's fetches, found by running it where those that it declares can't be right.

Converters of LightGBM and XGBoost declare a label as [1], and it has a row for each row fed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.engines.feeds import Array, Fed, input_examples
from pipeline.errors import InvalidInput, ModelFailed
from pipeline.models.signature import Variable

log = logging.getLogger(__name__)

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
