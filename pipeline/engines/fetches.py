"""Model outputs (fetches): selection by name, and shapes that are measured by inference."""

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

# Numbered default names of a program's outputs in Paddle 2 and Paddle 3.
_OLD_FETCH = re.compile(r"save_infer_model/scale_(\d+)(?:\.tmp_\d+)?")
_NUMBERED_FETCH = re.compile(rf"{_OLD_FETCH.pattern}|fetch_name_\d+")


def select_fetches(fetches: Sequence[Variable], aliases: Sequence[str]) -> tuple[Variable, ...]:
    """Return the model outputs with these aliases, in their order; all outputs if no alias is given.

    An output that is selected by a name from an older Paddle version gets that name as its alias. Raises
    ConfigError for an unknown alias.
    """
    selected = []
    for alias in aliases:
        fetch = find_fetch(fetches, alias)
        if fetch is None:
            names = ", ".join(variable.alias for variable in fetches)
            raise ConfigError(f"fetch_list: the model has no {alias!r}, only {names}")
        if fetch.alias != alias:
            log.info("fetch_list: %s is the output that the model calls %s", alias, fetch.alias)
        selected.append(replace(fetch, alias=alias))
    return tuple(selected) or tuple(fetches)


def find_fetch(fetches: Sequence[Variable], name: str) -> Variable | None:
    """Return the model output of this alias; None if there is none.

    Paddle 2 called the first output `save_infer_model/scale_0.tmp_0` or `.tmp_1`, Paddle 3 calls it
    `fetch_name_0`. The names of Paddle 2 still find the output of that number, unless the model's outputs
    have names of their own.
    """
    fetch = next((variable for variable in fetches if variable.alias == name), None)
    old = _OLD_FETCH.fullmatch(name)
    if fetch is not None or old is None or int(old[1]) >= len(fetches):
        return fetch
    numbered = all(_NUMBERED_FETCH.fullmatch(variable.alias) for variable in fetches)
    return fetches[int(old[1])] if numbered else None


def get_graph_feeds(
    model: ServingModel,
    feeds: Sequence[Variable],
    fetches: Sequence[Variable],
    *,
    takes_bfloat16: bool = False,
) -> tuple[Variable, ...]:
    """Return the inputs that a model's description declares, with the shapes in its graph file.

    `feeds` and `fetches` are the inputs and outputs of the graph. Raises ConfigError at start-up for a
    description that does not match the graph, and for bfloat16 unless `takes_bfloat16`: NumPy lacks that
    type.
    """
    if not takes_bfloat16:
        _refuse_unfeedable(model)
    _compare_signatures(model.feeds, feeds, "feed", model)
    _compare_signatures(model.fetches, fetches, "fetch", model)
    shapes = {variable.name: variable.shape for variable in feeds}
    return tuple(dataclasses.replace(v, shape=shapes[v.name], is_lod=False) for v in model.feeds)


def _refuse_unfeedable(model: ServingModel) -> None:
    for kind, variables in (("feed", model.feeds), ("fetch", model.fetches)):
        for variable in variables:
            if variable.dtype == "bfloat16":
                raise ConfigError(
                    f"{kind} {variable.alias!r} of {model.program} is of type bfloat16, which NumPy lacks: "
                    "export the model with float32 or float16 inputs and outputs"
                )


def _compare_signatures(
    declared: Sequence[Variable], actual: Sequence[Variable], kind: str, model: ServingModel
) -> None:
    dtypes = {variable.name: variable.dtype for variable in actual}
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


_LENGTH = 16  # of open axes of feeds, other than the batch

Shape = tuple[int, ...]


def measure_fetches(
    program: Path,
    model: Fed,
    fetches: Sequence[Variable],
    program_fetches: Sequence[Variable],
    run: Callable[[Mapping[str, Array]], Mapping[str, Array]],
) -> tuple[Variable, ...]:
    """Return the model outputs with the graph's shapes, corrected by inferences on 1 row and on 2 rows.

    `program` is the graph file, for the log. `program_fetches` are its outputs by name. No inference runs if
    all outputs have a dynamic batch axis, or if an input lacks one. `run` maps inputs by alias to outputs by
    alias.
    """
    declared = {variable.name: variable.shape for variable in program_fetches if not variable.has_rows}
    if not any(fetch.name in declared for fetch in fetches):
        return tuple(fetches)
    all_have_rows = all(feed.has_rows for feed in model.feeds)
    answers = _run_one_and_two_rows(program, model, run) if all_have_rows else None
    measured = []
    for fetch in fetches:
        shape = declared.get(fetch.name, fetch.shape)
        if answers is not None and fetch.name in declared:
            of_one_row, of_two_rows = (answer[fetch.alias].shape for answer in answers)
            if (by_row := _get_shape_by_row(shape, of_one_row, of_two_rows)) is not None:
                details = fetch.name, list(shape), list(by_row)
                log.info("%s declares %s as %s, and answers %s: a row for each row fed", program, *details)
                shape = by_row
        measured.append(replace(fetch, shape=shape))
    return tuple(measured)


def _run_one_and_two_rows(
    program: Path, model: Fed, run: Callable[[Mapping[str, Array]], Mapping[str, Array]]
) -> tuple[Mapping[str, Array], Mapping[str, Array]] | None:
    """Return the outputs for example inputs of 1 and of 2 rows; None if the model rejects the examples."""
    try:
        return run(input_examples(model, 1, _LENGTH)), run(input_examples(model, 2, _LENGTH))
    except (InvalidInput, ModelFailed) as exc:
        log.info("%s can't be run on feeds of ones, to see what it answers: %s", program, exc.message)
        return None


def _get_shape_by_row(declared: Shape, of_one_row: Shape, of_two_rows: Shape) -> Shape | None:
    """Return the shape of an output that has a row for each input row; None for other outputs.

    declared: the shape in the model's file. of_one_row, of_two_rows: the shapes for one and two input rows.
    Axes that vary are -1.
    """
    if of_one_row[:1] != (1,) or of_two_rows[:1] != (2,) or len(of_one_row) != len(of_two_rows):
        return None
    row = declared[1:] if len(declared) == len(of_one_row) else of_one_row[1:]
    lengths = zip(row, of_one_row[1:], of_two_rows[1:], strict=True)
    return (-1, *(first if length == first == second else -1 for length, first, second in lengths))
