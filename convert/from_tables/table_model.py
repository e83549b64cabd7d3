"""Loads a scikit-learn, LightGBM or XGBoost model, with its columns and classes, and runs it.

For the conversion environment.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import numpy as np

from convert.from_tables.categories import Categories, find_categories
from convert.programs.engines import first_line
from convert.steps.progress import Steps
from pipeline.errors import ConversionError

Array = np.ndarray[Any, np.dtype[Any]]

MODEL_FILE = "model.onnx"
ROWS_FILE = "proof_rows.npz"  # rows that the model accepts: it rejects unknown texts


@dataclass
class Column:
    """A column of the table that the model takes: its name, type and known categories."""

    name: str
    type: str = "number"
    values: Sequence[Any] = ()  # categories that the model knows; empty for other numbers
    accepts_unknown: bool = False  # whether the model answers unknown texts
    missing: str = "refuse"
    feed: str = ""  # the column's own input of the ONNX model, if each column has one


@dataclass
class TableModel:
    """A loaded scikit-learn, LightGBM or XGBoost model with its columns and classes."""

    model: Any
    columns: list[Column]
    named: bool  # whether the model takes a table with names, not a matrix
    classes: list[Any]  # of a classifier, in the order of its scores
    categories: Mapping[str, Categories] = field(default_factory=dict)  # encoded by a booster, by column

    @property
    def scored(self) -> bool:
        """Whether the model returns probabilities or values, and not only a class."""
        return hasattr(self.model, "predict_proba") or not hasattr(self.model, "classes_")

    def run(self, rows: Mapping[str, Array]) -> Array:
        """Run the model on rows, an array for each column.

        Returns probabilities [rows, classes] or classes [rows] of a classifier, or values [rows, 1].
        """
        batch = self.create_input(rows)
        if hasattr(self.model, "predict_proba"):
            return np.asarray(self.model.predict_proba(batch))
        if not self.scored:
            return np.asarray(self.model.predict(batch))
        answer = np.asarray(self.model.predict(batch), np.float64)
        if len(self.classes) == 2 and answer.ndim == 1:  # a booster's, of the second class
            return np.stack([1 - answer, answer], axis=1)
        return answer.reshape(len(answer), -1)

    def create_input(self, rows: Mapping[str, Array]) -> Any:
        """Convert rows, an array for each column, to the model's input type: DataFrame, DMatrix or matrix."""
        if self.named:
            return self._create_table(rows)
        matrix = np.stack([rows[column.name] for column in self.columns], axis=1).astype(np.float32)
        if _is_xgboost_booster(self.model):
            import xgboost

            return xgboost.DMatrix(
                matrix,
                feature_names=self.model.feature_names,
                feature_types=self.model.feature_types,
                enable_categorical=True,
            )
        return matrix

    def _create_table(self, rows: Mapping[str, Array]) -> Any:
        """Convert rows to a DataFrame, or to a DMatrix for XGBoost's Booster.

        Boosters get the column names and categories of their training.
        """
        import pandas

        table = pandas.DataFrame({column.name: rows[column.name] for column in self.columns})
        for name, categories in self.categories.items():
            table[name] = pandas.Categorical(table[name], categories=list(categories.values))
        if self.categories:
            table.columns = pandas.Index(_get_column_names(self.model))
        if _is_xgboost_booster(self.model):
            import xgboost

            return xgboost.DMatrix(table, enable_categorical=True)
        return table


def _is_xgboost_booster(model: Any) -> bool:
    return type(model).__module__.startswith("xgboost") and type(model).__name__ == "Booster"


def installed_version(steps: Steps, distribution: str) -> str:
    """Return the version of an installed distribution; runs as a step in the conversion environment."""
    return metadata.version(distribution)


def load_table_model(source: str, library: str, columns: Sequence[Sequence[str]]) -> TableModel:
    """Load a model file of a library, "scikit-learn", "LightGBM" or "XGBoost", with its columns.

    columns: pairs of name and dtype from --input-spec. Raises ConversionError if the file can't be loaded or
    the columns don't fit.
    """
    try:
        model = _LOADERS[library](source)
    except ConversionError:
        raise
    except Exception as exc:
        raise ConversionError(f"{source} can't be loaded ({first_line(exc)}).") from exc
    model = getattr(model, "best_estimator_", model)  # of a search over parameters
    if not hasattr(model, "predict"):
        raise ConversionError(f"{source} holds a {type(model).__name__}, which has no predict().")
    text_columns = _text_columns(model)
    names = [name for name, _ in columns] or _get_column_names(model)
    count = _count(model)
    if count and len(names) != count:
        raise ConversionError(f"--input-spec names {len(names)} columns, the model takes {count}.")
    dtypes = {entry[0]: entry[1] for entry in columns}
    categories = find_categories(model, names)
    table_columns = []
    for name in names:
        if name in text_columns:
            column = Column(name, "text", *text_columns[name])
        elif name in categories:
            column = _categorical(name, categories[name])
        else:
            column = Column(name, _type(dtypes.get(name, "")))
        table_columns.append(column)
    encoded = {name: entry for name, entry in categories.items() if entry.encoded}
    named = bool(encoded) or any(column.type == "text" for column in table_columns)
    return TableModel(model, table_columns, named or _transforms_columns(model), _classes(model), encoded)


def _categorical(name: str, categories: Categories) -> Column:
    kind = "text" if isinstance(categories.values[0], str) else "integer"
    return Column(name, kind, categories.values, categories.accepts_unknown)


def _load_sklearn(source: str) -> Any:
    import joblib

    return joblib.load(source)


def _load_lightgbm(source: str) -> Any:
    import lightgbm

    return lightgbm.Booster(model_file=source)


def _load_xgboost(source: str) -> Any:
    import xgboost

    booster = xgboost.Booster()
    booster.load_model(source)
    return booster


_LOADERS = {"scikit-learn": _load_sklearn, "LightGBM": _load_lightgbm, "XGBoost": _load_xgboost}


def _get_column_names(model: Any) -> list[str]:
    """Return the column names used in the model's training; if it has none, x0, x1, ..."""
    names = getattr(model, "feature_names_in_", None)
    if names is None and hasattr(model, "feature_name") and callable(model.feature_name):
        names = [name for name in model.feature_name() if not name.startswith("Column_")]
    if names is None or not len(names):
        names = getattr(model, "feature_names", None)
    if names is not None and len(names):
        return [str(name) for name in names]
    return [f"x{number}" for number in range(_count(model))]


def _count(model: Any) -> int:
    """Return how many columns the model takes.

    Raises ConversionError if the model does not declare the number.
    """
    for name in ("n_features_in_", "num_feature", "num_features"):
        value = getattr(model, name, None)
        if value is not None:
            return int(value() if callable(value) else value)
    raise ConversionError(
        f"a {type(model).__name__} does not tell its columns; name them: --input-spec "
        '"age:float32[-1,1];job:string[-1,1]".'
    )


def _classes(model: Any) -> list[Any]:
    """Return the classes of a classifier: names, or numbers for a booster; empty for a regressor."""
    classes = getattr(model, "classes_", None)
    if classes is not None:
        return list(np.asarray(classes).tolist())
    if type(model).__name__ != "Booster":
        return []
    if type(model).__module__.startswith("lightgbm"):
        objective = str(model.params.get("objective") or model.dump_model().get("objective", ""))
        count = model.num_model_per_iteration()
    else:
        learner = json.loads(model.save_config())["learner"]
        objective = learner["objective"]["name"]
        count = int(learner["learner_model_param"]["num_class"])
    if objective.startswith(("binary", "cross_entropy")):
        return [0, 1]
    return list(range(count)) if objective.startswith("multi") else []


def _steps(model: Any) -> list[Any]:
    """Return the steps of a scikit-learn Pipeline; empty for another model."""
    return [step for _, step in getattr(model, "steps", [])]


def _is_missing(value: Any) -> bool:
    return value is None or value != value


def with_empty_texts(model: Any) -> Any:
    """Return a copy of a scikit-learn model that treats the empty text as a missing text, as ONNX does."""
    copied = copy.deepcopy(model)
    for part in _parts(copied):
        if hasattr(part, "categories_"):
            part.categories_ = [
                np.array(["" if _is_missing(value) else value for value in values], object)
                if np.asarray(values).dtype.kind == "O"
                else values
                for values in part.categories_
            ]
        statistics = getattr(part, "statistics_", None)
        if statistics is not None and np.asarray(statistics).dtype.kind == "O":
            part.missing_values = ""
    return copied


def _parts(model: Any) -> Iterator[Any]:
    """Yield a model, and recursively the pipeline steps and column transformers in it."""
    yield model
    transformers = [step for _, step, _ in getattr(model, "transformers_", [])]
    for part in (*_steps(model), *transformers):
        yield from _parts(part)


def _transforms_columns(model: Any) -> bool:
    return any(hasattr(step, "transformers_") for step in (model, *_steps(model)))


def _text_columns(model: Any) -> dict[str, tuple[list[str], bool]]:
    """Return the text columns of a model by name: known texts, and whether unknown texts are accepted."""
    texts: dict[str, tuple[list[str], bool]] = {}
    for transformer in (step for step in (model, *_steps(model)) if hasattr(step, "transformers_")):
        for _, step, columns in transformer.transformers_:
            names = [columns] if isinstance(columns, str) else list(columns)
            encoder = next(
                (candidate for candidate in (step, *_steps(step)) if hasattr(candidate, "categories_")), None
            )
            if encoder is None or not all(isinstance(name, str) for name in names):
                continue
            lenient = getattr(encoder, "handle_unknown", "error") != "error"
            for name, values in zip(names, encoder.categories_, strict=False):
                if np.asarray(values).dtype.kind in "OUS":
                    texts[name] = ([str(value) for value in values if not _is_missing(value)], lenient)
    return texts


def _type(dtype: str) -> str:
    if dtype == "string":
        return "text"
    return "integer" if dtype.startswith(("int", "uint")) else "number"
