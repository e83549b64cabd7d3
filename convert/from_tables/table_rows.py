"""The rows that prove a table model: rows of CSV files, or generated rows."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convert.from_tables.table_model import Column
from pipeline.errors import ConversionError

Array = np.ndarray[Any, np.dtype[Any]]

MAX_ROWS = 2048  # of a sample: as many as stay beside the model
_MADE_ROWS = 64
_UNSEEN = "never seen"


def read_rows(paths: Sequence[str], columns: Sequence[Column]) -> dict[str, Array]:
    """Read rows of CSV files, by column. Raise ConversionError for a file without such columns."""
    cells: dict[str, list[str]] = {column.name: [] for column in columns}
    for path in paths:
        if Path(path).suffix.lower() != ".csv":
            raise ConversionError(f"{path} is no .csv file with a column for each of the model's.")
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                if lacking := [name for name in cells if row.get(name) is None]:
                    raise ConversionError(f"{path}, line {number} has no column {lacking[0]!r}.")
                for name, values in cells.items():
                    values.append(str(row[name]))
    return {column.name: _parse_cells(column, cells[column.name][:MAX_ROWS]) for column in columns}


def generate_rows(columns: Sequence[Column]) -> dict[str, Array]:
    """Generate rows of numbers of several sizes, and of known texts; the same on every call."""
    random = np.random.default_rng(7)
    rows: dict[str, Array] = {}
    for column in columns:
        if column.type == "text":
            texts = [*column.values, *([_UNSEEN] if column.accepts_unknown else [])]
            rows[column.name] = random.choice(np.array(texts or [_UNSEEN], object), _MADE_ROWS)
            continue
        kinds = random.permutation(np.arange(_MADE_ROWS) % 3)
        values = np.choose(
            kinds,
            [
                random.normal(0, 1, _MADE_ROWS),
                random.uniform(0, 10, _MADE_ROWS),
                random.normal(0, 50, _MADE_ROWS),
            ],
        )
        rows[column.name] = np.round(values).astype(np.int64) if column.type == "integer" else values
    return rows


def _parse_cells(column: Column, cells: Sequence[str]) -> Array:
    if column.type == "text":
        return np.array(cells, object)
    try:
        numbers = np.array([float(cell) if cell.strip() else np.nan for cell in cells])
    except ValueError as exc:
        raise ConversionError(
            f"column {column.name!r} of the sample holds what is no number ({exc})."
        ) from exc
    return numbers.astype(np.int64) if column.type == "integer" else numbers
