"""The sample stored beside a serving model: real rows that judge `precision: auto`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convert.programs.program_feeds import Feeds
from convert.proof.padding import pad_rows
from pipeline.models.serving_model import SAMPLE_FILE, SERVER_FOLDER, FeedPadding

MAX_ROWS = 2048
MAX_BYTES = 256 << 20  # 256 images of 3 x 224 x 224 floats are 154 MB


def store_sample(model: Path, rows: Sequence[Feeds], padding: Mapping[str, FeedPadding]) -> None:
    """Write rows, each a batch of one by alias, to sample.npz of the serving model, as one padded batch.

    If rows can't be joined, only rows of the commonest shape are stored. An existing file stays.
    """
    file = model / SERVER_FOLDER / SAMPLE_FILE
    if not rows or file.exists():
        return
    groups: dict[object, list[Feeds]] = {}
    for row in rows:
        groups.setdefault(_fixed_dims(row, padding), []).append(row)
    alike = max(groups.values(), key=len)
    longest_bytes = max(sum(array.nbytes for array in row.values()) for row in alike)
    max_rows = min(MAX_ROWS, max(1, MAX_BYTES // max(1, longest_bytes)))
    joined = pad_rows(alike[:max_rows], padding)
    # Texts are objects, which would be pickled.
    plain: dict[str, Any] = {
        name: array.astype(str) if array.dtype == object else array for name, array in joined.items()
    }
    np.savez_compressed(file, **plain)


def _fixed_dims(row: Feeds, padding: Mapping[str, FeedPadding]) -> object:
    """Return the shapes of a row's arrays without the axes that may be padded."""
    axes = {name: padding[name].axis if name in padding else 0 for name in row}
    return tuple((name, np.delete(array.shape, axes[name]).tobytes()) for name, array in row.items())
