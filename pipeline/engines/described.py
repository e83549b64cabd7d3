"""Whether what stands beside a graph describes it, for engines whose graphs tell their feeds and fetches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pipeline.errors import ConfigError
from pipeline.models.serving_model import SERVER_CONF, ServingModel, Variable


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
