"""The greatest lengths that a model takes: of a BERT, how many positions it has."""

from __future__ import annotations

from collections.abc import Mapping

from convert.programs.program_feeds import Feeds
from convert.programs.runners import Runner
from convert.proof.target import Target
from pipeline.errors import ConversionError
from pipeline.models.serving_model import Variable

LONGEST_TRIED = 2048


def max_lengths(run: Runner, target: Target, row: Feeds) -> dict[str, tuple[int, int]]:
    """By feed the axis of its length and the greatest that the model runs; feeds without one are left out.

    Found by trial: `row`, a batch of one that the model runs, is repeated along the only axis, besides the
    batch, that is open, up to LONGEST_TRIED. Feeds that have to be as long as each other (ids and their mask)
    grow together.
    """
    axes = {feed.name: axis for feed in target.feeds if (axis := _length_axis(feed)) is not None}
    if not target.by_row:
        return {}
    alone = [name for name in axes if _runs(run, row, {name: axes[name]}, row[name].shape[axes[name]] + 1)]
    together = [name for name in axes if name not in alone]
    found: dict[str, tuple[int, int]] = {}
    for names in [*([name] for name in alone), *([together] if together else [])]:
        own = {name: axes[name] for name in names}
        greatest = _greatest(run, row, own)
        if greatest is not None:
            found |= {name: (axis, greatest) for name, axis in own.items()}
    return found


def _length_axis(feed: Variable) -> int | None:
    """The only open axis besides the batch; an image has two."""
    axes = [axis for axis, dim in enumerate(feed.shape) if axis and dim < 0]
    return axes[0] if len(axes) == 1 else None


def _greatest(run: Runner, row: Feeds, axes: Mapping[str, int]) -> int | None:
    """None where no length is too great, or where what fails is something else than its being so great."""
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
    # A model that wants a multiple of something fails in between as well.
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
