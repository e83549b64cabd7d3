"""Rows that a model of tables is tried on: those of CSV files, or made up."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convert.from_tables.table_model import Column
from pipeline.errors import ConversionError

Array = np.ndarray[Any, np.dtype[Any]]

MOST_ROWS = 2048  # of a sample: as many as are left beside the model
_MADE_ROWS = 64
_SIZES = (1, 10, 100)  # of numbers that are made up
_UNSEEN = "never seen"


def rows_of_sample(paths: Sequence[str], columns: Sequence[Column]) -> dict[str, Array]:
    """The rows of CSV files, by column. Raises ConversionError for a file without them."""
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
    return {column.name: _cells(column, cells[column.name][:MOST_ROWS]) for column in columns}


def made_up_rows(columns: Sequence[Column]) -> dict[str, Array]:
    """Rows of numbers of several sizes, and of texts that the model knows; the same on every call."""
    random = np.random.default_rng(7)
    rows: dict[str, Array] = {}
    for column in columns:
        if column.type == "text":
            known = [*column.values, *([_UNSEEN] if column.takes_others else [])]
            rows[column.name] = random.choice(np.array(known or [_UNSEEN], object), _MADE_ROWS)
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


def _cells(column: Column, cells: Sequence[str]) -> Array:
    if column.type == "text":
        return np.array(cells, object)
    try:
        numbers = np.array([float(cell) if cell.strip() else np.nan for cell in cells])
    except ValueError as exc:
        raise ConversionError(
            f"column {column.name!r} of the sample holds what is no number ({exc})."
        ) from exc
    return numbers.astype(np.int64) if column.type == "integer" else numbers
