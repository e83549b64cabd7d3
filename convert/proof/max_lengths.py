"""Finds the maximum input lengths that a model accepts, such as the number of positions of a BERT."""

from __future__ import annotations

from collections.abc import Mapping

from convert.programs.program_feeds import Feeds
from convert.programs.runners import Runner
from convert.proof.target import Target
from pipeline.errors import ConversionError
from pipeline.models.serving_model import Variable

LONGEST_TRIED = 2048


def max_lengths(run: Runner, target: Target, row: Feeds) -> dict[str, tuple[int, int]]:
    """Return, by input name, the axis of an input's length and the maximum length that the model runs.

    The lengths are found by trial. `row` is a batch of one row that the model can run. It is repeated along
    the only dynamic axis besides the batch, up to LONGEST_TRIED. Inputs of equal length, such as ids and
    their mask, are lengthened together. Inputs without a limit are left out of the result.
    """
    axes = {feed.name: axis for feed in target.feeds if (axis := _length_axis(feed)) is not None}
    if not target.by_row:
        return {}
    alone = [name for name in axes if _runs(run, row, {name: axes[name]}, row[name].shape[axes[name]] + 1)]
    together = [name for name in axes if name not in alone]
    limits: dict[str, tuple[int, int]] = {}
    for names in [*([name] for name in alone), *([together] if together else [])]:
        group = {name: axes[name] for name in names}
        greatest = _greatest(run, row, group)
        if greatest is not None:
            limits |= {name: (axis, greatest) for name, axis in group.items()}
    return limits


def _length_axis(feed: Variable) -> int | None:
    """Return an input's only dynamic axis besides the batch; None for images, which have two such axes."""
    axes = [axis for axis, dim in enumerate(feed.shape) if axis and dim < 0]
    return axes[0] if len(axes) == 1 else None


def _greatest(run: Runner, row: Feeds, axes: Mapping[str, int]) -> int | None:
    """Return the maximum length that the model runs.

    None if there is no maximum, or if errors have another cause. axes: the axis to lengthen, by input name.
    """
    lengths = {row[name].shape[axis] for name, axis in axes.items()}
    runs = max(lengths)
    if len(lengths) > 1 or not _runs(run, row, axes, runs):
        return None
    fails = min(2 * runs, LONGEST_TRIED)
    while _runs(run, row, axes, fails):
        if fails == LONGEST_TRIED:
            return None
        runs, fails = fails, min(2 * fails, LONGEST_TRIED)
    while fails - runs > 1:
        middle = (runs + fails) // 2
        if _runs(run, row, axes, middle):
            runs = middle
        else:
            fails = middle
    # A model whose length must be a multiple of a number fails in between as well.
    plain = all(_runs(run, row, axes, max(1, runs - n)) for n in (1, 2, runs // 3)) and not any(
        _runs(run, row, axes, runs + n) for n in (2, 3)
    )
    return runs if plain else None


def _runs(run: Runner, row: Feeds, axes: Mapping[str, int], length: int) -> bool:
    longer = {
        name: array.take([n % array.shape[axes[name]] for n in range(length)], axis=axes[name])
        if name in axes
        else array
        for name, array in row.items()
    }
    try:
        run(longer)
    except ConversionError:
        return False
    return True
