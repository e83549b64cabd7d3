"""Converts a scikit-learn, LightGBM or XGBoost model to ONNX, in a process with the converters' packages."""

from __future__ import annotations

import csv
import importlib
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from convert.from_tables.categories import encode_categories
from convert.from_tables.table_model import (
    MODEL_FILE,
    ROWS_FILE,
    Array,
    Column,
    TableModel,
    load_table_model,
    with_empty_texts,
)
from convert.programs.engines import first_line
from convert.proof.parity import compare
from convert.steps.progress import Steps
from pipeline.errors import ConversionError

MAX_ROWS = 2048  # of a sample: as many as stay beside the model
_MADE_ROWS = 64
_UNSEEN = "never seen"


def read_rows(paths: Sequence[str], columns: Sequence[Column]) -> dict[str, Array]:
    """Read the rows of CSV files, at most 2048, as an array for each column.

    Raises ConversionError for a file that lacks one of the columns or has text in a column of numbers.
    """
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
    """Generate 64 random rows, an array for each column: numbers of several magnitudes, known categories.

    Every call returns the same rows.
    """
    random = np.random.default_rng(7)
    rows: dict[str, Array] = {}
    for column in columns:
        if column.type == "text" or column.values:
            unknown = [_UNSEEN] if column.type == "text" and column.accepts_unknown else []
            categories = [*column.values, *unknown] or [_UNSEEN]
            dtype = object if column.type == "text" else np.int64
            rows[column.name] = random.choice(np.array(categories, dtype), _MADE_ROWS)
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


FEED = "x"  # of all columns
SCORES, VALUE, LABEL = "probabilities", "prediction", "label"
_OPSETS = {"": 17, "ai.onnx.ml": 3}
_OPSET_OF_BOOSTERS = 15  # the latest that onnxmltools writes
_NEAR = 1e-5  # scores closer than this determine no class


def table_step(
    steps: Steps,
    source: str,
    library: str,
    out: str,
    columns: Sequence[Sequence[str]],
    sample: Sequence[str],
    tolerance: float,
) -> dict[str, Any]:
    """Convert a model file to model.onnx in `out`, and write the rows of the comparison beside it.

    columns: pairs of name and dtype from --input-spec. sample: CSV files with rows for the comparison.
    Returns a dictionary with the comparison report, the class and labels of the model, and serving.yml's
    inputs and outputs.
    """
    steps.step(f"Reading the model of {library}")
    model = load_table_model(source, library, columns)
    rows = read_rows(sample, model.columns) if sample else generate_rows(model.columns)
    steps.step(f"{library} to ONNX")
    try:
        onnx_model = _convert_to_onnx(model)
    except ConversionError:
        raise
    except Exception as exc:
        raise ConversionError(
            f"{source}: a {type(model.model).__name__} can't be written as ONNX ({first_line(exc)})."
        ) from exc
    _name_feeds(onnx_model, model)
    outputs = _name_outputs(onnx_model, model, rows)
    file = Path(out, MODEL_FILE)
    onnx.save(onnx_model, str(file))
    steps.step(f"Parity of {library} and ONNX")
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    name = outputs[-1]

    def answers(feeds_by_name: Mapping[str, Array]) -> list[Array]:
        return [_comparable(model, session.run([name], dict(feeds_by_name))[0])]

    _allow_missing(model, rows, answers, tolerance)
    feeds = _feeds(model, rows)
    stored: dict[str, Any] = {name: _storable(array) for name, array in feeds.items()}
    np.savez(Path(out, ROWS_FILE), **stored)
    expected = _comparable(model, model.run(rows))
    report = compare(f"{library} to ONNX", [name], lambda _: [expected], answers, [feeds], tolerance)
    return {
        "report": asdict(report),
        "class": type(model.model).__name__,
        "labels": [str(name) for name in model.classes],
        "inputs": {"row": {"kind": "table", "columns": _described_columns(model, rows)}},
        "outputs": _described_outputs(outputs),
    }


def _comparable(model: TableModel, answer: Any) -> Array:
    """Convert a model's answer to numbers that can be compared. A class is converted to its index."""
    if model.classes and not model.scored:
        return np.array(
            [model.classes.index(label) for label in np.asarray(answer).ravel().tolist()], np.float64
        )
    return np.asarray(answer, np.float64)


def _allow_missing(
    model: TableModel,
    rows: dict[str, Array],
    answers: Callable[[Mapping[str, Array]], list[Array]],
    tolerance: float,
) -> None:
    """Mark columns as accepting missing values if both models give the same answers to a row without values.

    This row then replaces the last of `rows`. Some models fail the test: a scikit-learn forest has a branch
    for missing numbers that ONNX's trees lack.
    """
    for kind, missing in (("number", np.nan), ("text", None)):
        columns = [column for column in model.columns if column.type == kind]
        tried = {name: array.copy() for name, array in rows.items()}
        for column in columns:
            tried[column.name][-1] = missing
        try:
            expected = _comparable(model, model.run(tried))
            (actual,) = answers(_feeds(model, tried))
        except Exception:  # each library has its own errors
            continue
        if columns and np.allclose(expected, actual, rtol=0, atol=tolerance):
            rows.update(tried)
            for column in columns:
                column.missing = "nan"


def _convert_to_onnx(model: TableModel) -> Any:
    """Convert the model with skl2onnx or onnxmltools, and return the ONNX ModelProto."""
    library = type(model.model).__module__.partition(".")[0]
    if library in ("lightgbm", "xgboost"):
        return _convert_booster(model, library)
    from skl2onnx import to_onnx
    from skl2onnx.common import data_types

    _register_boosters()
    _store_whole_numbers()
    options = {"zipmap": False} if hasattr(model.model, "predict_proba") else None
    return to_onnx(
        with_empty_texts(model.model),
        initial_types=_types(model, data_types),
        options=options,
        target_opset=_OPSETS,
    )


def _convert_booster(model: TableModel, library: str) -> Any:
    import onnxmltools
    from onnxmltools.convert.common import data_types

    options = {
        "initial_types": [(FEED, data_types.FloatTensorType([None, len(model.columns)]))],
        "target_opset": _OPSET_OF_BOOSTERS,
    }
    if library == "lightgbm":
        onnx_model = onnxmltools.convert_lightgbm(model.model, zipmap=False, **options)
    else:
        booster = model.model.get_booster() if hasattr(model.model, "get_booster") else model.model
        names, booster.feature_names = booster.feature_names, None  # it reads no names but f0, f1, ...
        try:
            onnx_model = onnxmltools.convert_xgboost(model.model, **options)
        finally:
            booster.feature_names = names
    if model.categories:
        dtypes = {column.name: column.type for column in model.columns}
        encode_categories(onnx_model, FEED, dtypes, model.categories)
    return onnx_model


def _types(model: TableModel, types: Any) -> list[tuple[str, Any]]:
    """Return the ONNX inputs with the converter's types: one matrix, or one input for each column."""
    kinds = {
        "number": types.FloatTensorType,
        "integer": types.Int64TensorType,
        "text": types.StringTensorType,
    }
    if not model.named:
        return [(FEED, types.FloatTensorType([None, len(model.columns)]))]
    return [(column.name, kinds[column.type]([None, 1])) for column in model.columns]


def _store_whole_numbers() -> None:
    """Patch skl2onnx 1.20 to store a flag of a tree's node as an integer, as protobuf requires."""
    from skl2onnx.common import tree_ensemble

    add_node = tree_ensemble.add_node

    def add(*args: Any, nodes_missing_value_tracks_true: int = 0, **kwargs: Any) -> Any:
        return add_node(*args, nodes_missing_value_tracks_true=int(nodes_missing_value_tracks_true), **kwargs)

    tree_ensemble.add_node = add


def _register_boosters() -> None:
    """Register the LightGBM and XGBoost estimators with skl2onnx, for pipelines that have them as steps."""
    for module, prefix, converter in (
        ("lightgbm", "LGBM", "onnxmltools.convert.lightgbm.operator_converters.LightGbm:convert_lightgbm"),
        ("xgboost", "XGB", "onnxmltools.convert.xgboost.operator_converters.XGBoost:convert_xgboost"),
    ):
        if module in sys.modules:  # the pickle has imported it
            of, _, name = converter.partition(":")
            _register(importlib.import_module(module), prefix, getattr(importlib.import_module(of), name))


def _register(library: Any, prefix: str, convert: Any) -> None:
    from skl2onnx import update_registered_converter
    from skl2onnx.common import shape_calculator as shapes

    classifies = {"nocl": [True, False], "zipmap": [True, False, "columns"]}
    of_classes = shapes.calculate_linear_classifier_output_shapes
    of_values = shapes.calculate_linear_regressor_output_shapes
    classifier, regressor = (getattr(library, f"{prefix}{kind}") for kind in ("Classifier", "Regressor"))
    update_registered_converter(classifier, f"{prefix}OfPaddlewheel", of_classes, convert, options=classifies)
    update_registered_converter(regressor, f"{prefix}ROfPaddlewheel", of_values, convert)


def _name_outputs(onnx_model: Any, model: TableModel, rows: Mapping[str, Array]) -> list[str]:
    """Name the outputs, make their batch axis dynamic, and remove redundant outputs; return the names.

    A label output is redundant if the class with the best score is always the label. Scores that are no
    probabilities are removed.
    """
    outputs = onnx_model.graph.output
    if not model.classes:
        renamed = {VALUE: outputs[0]}
    elif not model.scored:
        renamed = {LABEL: outputs[0]}
    elif _chooses_by_score(model, rows):
        renamed = {SCORES: outputs[-1]}
    else:
        renamed = {LABEL: outputs[0], SCORES: outputs[-1]}
    for output in list(outputs):
        if output not in renamed.values():
            outputs.remove(output)
    for name, output in renamed.items():
        _rename(onnx_model.graph, output, name)
        shape = output.type.tensor_type.shape
        del shape.dim[:]
        shape.dim.add().dim_param = "batch"
        if name != LABEL:
            shape.dim.add().dim_value = len(model.classes) or 1
    return list(renamed)


def _name_feeds(onnx_model: Any, model: TableModel) -> None:
    """Record the ONNX input of each column. Rename inputs that have the same name as an output.

    skl2onnx keeps the order of columns but changes names, for example names with blanks.
    """
    if not model.named:
        return
    graph = onnx_model.graph
    for column, feed in zip(model.columns, graph.input, strict=True):
        if feed.name in (SCORES, VALUE, LABEL):
            unused = _free_name(graph, feed.name)
            _rename_in_nodes(graph, {feed.name: unused})
            feed.name = unused
        column.feed = feed.name


def _rename(graph: Any, output: Any, name: str) -> None:
    """Rename an output of an ONNX graph. An inner tensor that has the new name gets another name."""
    _rename_in_nodes(graph, {name: _free_name(graph, name), output.name: name})
    output.name = name


def _free_name(graph: Any, name: str) -> str:
    """Return the name with a number appended, such that the result is unused in the graph."""
    used = {tensor for node in graph.node for tensor in (*node.input, *node.output)}
    used.update(feed.name for feed in graph.input)
    return next(other for number in itertools.count() if (other := f"{name}_{number}") not in used)


def _rename_in_nodes(graph: Any, renamed: Mapping[str, str]) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]


def _chooses_by_score(model: TableModel, rows: Mapping[str, Array]) -> bool:
    """Return whether the predicted class is always the class with the best score."""
    if not hasattr(model.model, "classes_"):
        return True
    scores = model.run(rows)
    best_two = np.sort(scores, axis=1)[:, -2:]
    clear = best_two[:, 1] - best_two[:, 0] > _NEAR
    predicted = np.asarray(model.model.predict(model.create_input(rows)))
    by_score = np.asarray(model.classes)[scores.argmax(1)]
    return bool((predicted == by_score)[clear].all())


def _feeds(model: TableModel, rows: Mapping[str, Array]) -> dict[str, Array]:
    """Convert rows, an array for each column, to the ONNX model's inputs."""
    if not model.named:
        matrix = np.stack([rows[column.name] for column in model.columns], axis=1)
        return {FEED: matrix.astype(np.float32)}
    dtypes: dict[str, Any] = {"number": np.float32, "integer": np.int64, "text": object}
    feeds = {c.feed: rows[c.name].astype(dtypes[c.type])[:, None] for c in model.columns}
    for array in feeds.values():
        if array.dtype.kind == "O":
            array[array == None] = ""  # noqa: E711  # a missing text
    return feeds


def _storable(array: Array) -> Array:
    return array.astype(str) if array.dtype.kind == "O" else array


def _described_columns(model: TableModel, rows: Mapping[str, Array]) -> list[dict[str, Any]]:
    """Return the columns as entries of serving.yml, each with an example value."""
    described = []
    for column in model.columns:
        value = column.values[0] if len(column.values) else rows[column.name][0]
        shown = f"{value:.3g}" if column.type == "number" else str(value)
        description: dict[str, Any] = {"name": column.name, "type": column.type, "example": shown}
        if model.named:
            description["feed"] = column.feed
        if column.missing != "refuse":
            description["missing"] = column.missing
        if column.name in model.categories and column.type == "text" and not column.accepts_unknown:
            description["values"] = list(column.values)
        described.append(description)
    return described


def _described_outputs(outputs: Sequence[str]) -> dict[str, Any]:
    if LABEL not in outputs:
        kind = {"kind": "classes", "activation": "none"} if SCORES in outputs else {"kind": "tensor"}
        return {outputs[0]: kind}
    # A numeric label has no name but its number.
    return {
        name: {"kind": "label", "labels": []} if name == LABEL else {"kind": "tensor"} for name in outputs
    }
