"""Declarations of the inputs and outputs that serving.yml describes, with an example of each input."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pipeline.api.examples import feed_texts
from pipeline.models.description import (
    Column,
    ImageInput,
    Input,
    Output,
    TableInput,
    TensorOutput,
    TextInput,
)
from pipeline.models.dtypes import BY_NAME
from pipeline.models.serving_model import ServingModel, Variable
from pipeline.ops.labels import answer_shapes, label_shapes
from pipeline.ops.tables import CSV

# 8 x 8 pixels, red to the right and green downwards, for the examples of services of images.
EXAMPLE_IMAGE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAbElEQVR42g3JQQEAMAgDMcQgBjEVcRIQUzEVw2PL"
    "N1VFF1Oo2MJFiiuqmm6mUbONmzTXP4YeZtCwg4cMNz9EixESKywiTj+WXmbRsouXLLc/TJsxMmtsYs4/QocJChsc"
    "Ei4/jj7m0LGHjxx3PPMZXwHXVs66AAAAAElFTkSuQmCC"
)
EXAMPLE_TEXT = "text"
_DATATYPES = {"number": "FP32", "integer": "INT64", "text": "BYTES"}
_CELLS = {"number": "1.0", "integer": "1", "text": "text"}


class Declared(NamedTuple):
    """Declaration of one input, with examples."""

    tensors: Mapping[str, str]  # as KServe declares them
    row: Mapping[str, Any]  # an example as KServe v1 has it; empty: a row of ones
    texts: Mapping[str, str] | None  # an example for key/value; None where it would be too large
    raw_bodies: Mapping[str, str] = {}  # by media type, the name under which hooks find such a body
    bodies: Mapping[str, bytes] = {}  # by media type, an example of a body


class DescribedFetch(NamedTuple):
    """A fetch that is part of the answer."""

    fetch: Variable
    output: Output
    prefix: str  # of its labels' names, where two outputs would have one name; else empty


def declared_input(name: str, section: Input, model: ServingModel) -> Declared:
    if isinstance(section, ImageInput):
        text = {name: base64.b64encode(EXAMPLE_IMAGE).decode()}
        return Declared({name: "BYTES [-1]"}, text, text, {"image/*": name}, {"image/png": EXAMPLE_IMAGE})
    if isinstance(section, TextInput):
        text = {name: EXAMPLE_TEXT}
        return Declared({name: "BYTES [-1]"}, text, text)
    if isinstance(section, TableInput):
        columns = section.columns
        tensors = {column.name: _declared_column(column) for column in columns}
        texts = {column.name: _example_cell(column) for column in columns}
        row = {column.name: _value(column, texts[column.name]) for column in columns}
        return Declared(tensors, row, texts, {"text/csv": CSV}, {"text/csv": _csv(texts)})
    (feed,) = (variable for variable in model.feeds if variable.alias == name)
    example = {alias: array for alias, array in model.read_example().items() if alias == name}
    declared = {name: f"{BY_NAME[feed.dtype].datatype} {list(feed.shape)}"}
    feed_text = feed_texts([feed], example)
    if not example or feed_text is None:
        return Declared(declared, {}, feed_text)
    by_rows = all(variable.has_rows for variable in (*model.feeds, *model.fetches))
    value = example[name][0] if by_rows else example[name]
    return Declared(declared, {name: value.tolist()}, feed_text)


def declared_outputs(model: ServingModel) -> Iterator[tuple[str, str]]:
    """Names and declarations of the outputs, those with labels first."""
    for fetch, output, prefix in described_fetches(model):
        for name, (datatype, shape) in answer_shapes(fetch, output, prefix).items():
            if row_by_row(model):
                shape = (-1, *shape[1:])
            yield name, f"{datatype or BY_NAME[fetch.dtype].datatype} {list(shape)}"


def described_fetches(model: ServingModel) -> list[DescribedFetch]:
    """Return the fetches of an answer, those with labels first."""
    outputs = model.description.outputs
    fetches = [fetch for fetch in model.fetches if fetch.alias in outputs]
    fetches.sort(key=lambda fetch: isinstance(outputs[fetch.alias], TensorOutput))
    names = [name for fetch in fetches for name in _names(fetch, outputs[fetch.alias])]
    labelled = sum(not isinstance(output, TensorOutput) for output in outputs.values())
    several = labelled > 1 or len(set(names)) < len(names)
    return [
        DescribedFetch(fetch, outputs[fetch.alias], f"{fetch.alias}_" if several else "") for fetch in fetches
    ]


def _names(fetch: Variable, output: Output) -> Iterator[str]:
    """The names that a fetch has in the answer, without a prefix; one twice where two things have it."""
    if isinstance(output, TensorOutput) or getattr(output, "raw", False):
        yield fetch.alias
    if not isinstance(output, TensorOutput):
        yield from label_shapes(fetch, output)


def row_by_row(model: ServingModel) -> bool:
    """Whether the rows of a request are run one by one, for the model was exported for one row alone."""
    is_single_row = bool(model.feeds) and all(feed.shape[:1] == (1,) for feed in model.feeds)
    return is_single_row and model.description.kinds != {"tensor"}


def _example_cell(column: Column) -> str:
    return column.example or next(iter(column.values), _CELLS[column.type])


def _declared_column(column: Column) -> str:
    missing = " or null" if column.type == "text" or column.missing == "nan" else ""
    return f"{_DATATYPES[column.type]} [-1]{missing}"


def _csv(texts: Mapping[str, str]) -> bytes:
    lines = io.StringIO(newline="")
    csv.writer(lines, lineterminator="\n").writerows([texts, texts.values()])
    return lines.getvalue().encode()


def _value(column: Column, text: str) -> Any:
    kinds: Mapping[str, Any] = {"number": float, "integer": int, "text": str}
    return kinds[column.type](text)
