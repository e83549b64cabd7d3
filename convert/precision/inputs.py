"""The inputs that a user gives to calibrate a precision or to judge it: .npz batches, or texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from convert.precision.texts import batched, text_rows
from convert.programs.feeds import Feeds, stored_feeds
from pipeline.errors import ConversionError, InvalidInput
from pipeline.predictors.base import check_feeds
from pipeline.serving_model import ServingModel

_ROWS = 24  # of texts, to be run alone and together


@dataclass(frozen=True)
class GivenInputs:
    """Feeds by the program's names: `batches` to run, and of texts `rows`, batches of one."""

    batches: tuple[Feeds, ...] = ()
    rows: tuple[Feeds, ...] = ()


def read_inputs(files: Sequence[Path], model: ServingModel) -> GivenInputs:
    """A .npz file is a batch with an array for each feed, by alias or name; any other holds a text a line.

    Raises ConversionError for what can't be read or doesn't fit the model.
    """
    batches: list[Feeds] = []
    rows: list[Feeds] = []
    for file in files:
        if file.suffix == ".npz":
            batches.append(_stored_batch(file, model))
        else:
            rows += text_rows(file, model)
    by_length = sorted(rows, key=lambda row: next(iter(row.values())).shape[1])
    spread = by_length[:: max(1, len(rows) // _ROWS)][:_ROWS]
    return GivenInputs((*batches, *batched(rows, model)), tuple(spread))


def store_batches(batches: Sequence[Feeds], folder: Path) -> None:
    """A .npz file for each, in their order; of its arrays the order tells the feed."""
    folder.mkdir()
    for number, batch in enumerate(batches):
        np.savez(folder / f"{number:06}.npz", *batch.values())


def _stored_batch(file: Path, model: ServingModel) -> Feeds:
    arrays = stored_feeds(file)
    asked = [replace(feed, alias=feed.name if feed.name in arrays else feed.alias) for feed in model.feeds]
    names = [feed.alias for feed in asked]
    if set(names) != arrays.keys():
        raise ConversionError(
            f"{file} holds {', '.join(sorted(arrays)) or 'nothing'}, but {model.directory} takes "
            f"{', '.join(names)}; store one array for each under its name."
        )
    try:
        checked = check_feeds(asked, arrays)
    except InvalidInput as exc:
        raise ConversionError(f"{file}: {exc.message.rstrip('.')}.") from exc
    return {feed.name: checked[feed.alias] for feed in asked}
