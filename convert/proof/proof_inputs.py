"""Chooses the inputs on which two models are compared: random inputs, or the user's sample files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from convert.programs.program_feeds import BATCH_SIZES, LENGTHS, Feeds, sample_batches, sample_rows
from convert.proof.padding import pad_rows
from convert.proof.sample_files import BATCH_FILES, read_sample
from convert.proof.target import Target
from pipeline.models.serving_model import FeedPadding

_ROWS = 24  # of a file, to be run alone and together
_ALIKE = 3  # rows of one length; twice as many are run
_BATCH_ROWS = 8
_CUTS = 4  # lengths that one row is cut to


@dataclass(frozen=True)
class Inputs:
    """The inputs on which two models are compared: random inputs, or the rows and batches of sample files."""

    lengths: tuple[int, ...] = LENGTHS  # of random inputs, on the axes that vary
    sample: tuple[Path, ...] = ()

    def batches(self, target: Target, sizes: Sequence[int] = BATCH_SIZES) -> list[Feeds]:
        """Return input batches for a model, with arrays by input name.

        There is a random batch for each length and batch size. If all batches of the files have the same
        size, batches of other `sizes` are added. Raises ConversionError for files that can't be read or don't
        fit the model.
        """
        if not self.sample:
            return sample_batches(target.specs, target.id_limits, self._lengths(target))
        batches, rows = self._read_batches(target)
        batches += _joined(rows, target)
        if not target.by_row or not sizes:
            return batches
        row = _cut_apart(batches[0])[0]
        counts = {len(array) for batch in batches for array in batch.values()}
        more_sizes = sizes[1:] if counts == {1} else [1] if 1 not in counts else []
        return [*batches, *(pad_rows([row] * size, {}) for size in more_sizes)]

    def rows(self, target: Target, padding: Mapping[str, FeedPadding]) -> list[Feeds]:
        """Return input batches of one row: of different lengths if there is `padding`, else of equal shapes.

        If all rows of the files have the same length, shortened copies are added.
        """
        if not self.sample:
            valid_lengths = self._lengths(target)
            lengths = valid_lengths if padding else valid_lengths[:1] * _ALIKE
            return sample_rows(target.specs, target.id_limits, lengths)
        rows = self.all_rows(target) if target.by_row else self._read_batches(target)[1]
        if not padding:
            alike = [row for row in rows if _shapes(row) == _shapes(rows[0])]
            return [alike[n % len(alike)] for n in range(2 * _ALIKE)]
        rows = _of_several_lengths(rows, padding)
        rows.sort(key=lambda row: _length(row, padding))
        return rows[:: max(1, len(rows) // _ROWS)][:_ROWS]

    def all_rows(self, target: Target) -> list[Feeds]:
        """Return all rows of the sample files as batches of one row.

        Empty without files, and for a model whose inputs can't be split into rows.
        """
        if not self.sample or not target.by_row:
            return []
        batches, rows = self._read_batches(target)
        return rows + [row for batch in batches for row in _cut_apart(batch)]

    def _lengths(self, target: Target) -> tuple[int, ...]:
        """Return `lengths`, each cut to the maximum length in the model's serving.yml."""
        max_length = min(
            (feed.longest[1] for feed in target.feeds if feed.longest), default=max(self.lengths)
        )
        return tuple(dict.fromkeys(min(length, max_length) for length in self.lengths))

    def _read_batches(self, target: Target) -> tuple[list[Feeds], list[Feeds]]:
        """Return the batches of .npz and .npy files, and the rows of the other files."""
        batches: list[Feeds] = []
        rows: list[Feeds] = []
        for path in self.sample:
            (batches if path.suffix.lower() in BATCH_FILES else rows).extend(read_sample(path, target))
        return batches, rows


def _joined(rows: Sequence[Feeds], target: Target) -> list[Feeds]:
    """Return the rows in batches, as a service forms them.

    A batch holds rows of any length if the model's inputs may be padded, and rows of equal shapes otherwise.
    target: the model; if it takes no batches, the rows stay single. Every row is in exactly one batch.
    """
    if not target.by_row:
        return list(rows)
    groups: dict[object, list[Feeds]] = {}
    for row in rows:
        groups.setdefault(None if target.padding else _shapes(row), []).append(row)
    return [
        pad_rows(group[at : at + _BATCH_ROWS], target.padding)
        for group in groups.values()
        for at in range(0, len(group), _BATCH_ROWS)
    ]


def _cut_apart(batch: Feeds) -> list[Feeds]:
    count = min(len(array) for array in batch.values())
    return [{name: array[n : n + 1] for name, array in batch.items()} for n in range(count)]


def _of_several_lengths(rows: list[Feeds], padding: Mapping[str, FeedPadding]) -> list[Feeds]:
    """Return the rows. If all rows have the same length, a shortened copy of each is added."""
    if len({_length(row, padding) for row in rows}) > 1:
        return rows
    cut = []
    for number, row in enumerate(rows[:_ROWS]):
        for part in range(1, _CUTS) if number == 0 else [1 + number % (_CUTS - 1)]:
            length = max(1, _length(row, padding) * part // _CUTS)
            cut.append(
                {
                    name: array.take(range(length), axis=padding[name].axis) if name in padding else array
                    for name, array in row.items()
                }
            )
    return rows + cut


def _length(row: Feeds, padding: Mapping[str, FeedPadding]) -> int:
    return max(int(row[name].shape[rule.axis]) for name, rule in padding.items())


def _shapes(row: Feeds) -> tuple[tuple[int, ...], ...]:
    return tuple(array.shape for array in row.values())
