"""Models for tables: scikit-learn, LightGBM and XGBoost, trained on a hundred random rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.models.subject import ROWS, Subject, keep
from convert.steps.progress import Steps

SKLEARN, LIGHTGBM, XGBOOST = "scikit-learn", "LightGBM", "XGBoost"
_NEEDS = {
    SKLEARN: ("sklearn", "pandas", "joblib"),
    LIGHTGBM: ("lightgbm", "pandas", "joblib"),
    XGBOOST: ("xgboost", "pandas"),
}
_ROWS = 100


def make(steps: Steps, folder: str, kind: str, file: str) -> str:
    """Write the file of a library, and keep its predictions for two rows: labels and scores, or values."""
    import numpy as np

    features, target = _data(kind)
    model = _MODELS[kind]().fit(features, target)
    source = str(Path(folder, file))
    _save(model, source)
    rows = features.head(ROWS)
    inputs = {name: _column(rows[name]) for name in rows}
    if "regression" in kind:
        keep(folder, inputs, {"prediction": np.ravel(model.predict(rows)).astype(np.float32)})
        return source
    expected = {"label": np.asarray(model.predict(rows)).astype(str)}
    if hasattr(model, "predict_proba"):
        expected["score"] = model.predict_proba(rows).max(1).astype(np.float32)
    keep(folder, inputs, expected)
    return source


def _column(column: Any) -> Any:
    import numpy as np

    return column.to_numpy(np.float32) if column.dtype.kind == "f" else column.to_numpy().astype(str)


def _data(kind: str) -> tuple[Any, Any]:
    """Return random columns, and a target for each row: a class, or a number for regression."""
    import numpy as np
    import pandas

    random = np.random.default_rng(8)
    if "people" in kind:
        people = pandas.DataFrame(
            {
                "age": random.uniform(18, 80, _ROWS),
                "hours": random.uniform(0, 60, _ROWS),
                "job": random.choice(["clerk", "driver", "nurse"], _ROWS),
            }
        )
        return people, np.where((people["age"] > 40) & (people["job"] != "nurse"), "yes", "no")
    flowers = pandas.DataFrame(random.normal(0, 2, (_ROWS, 3)), columns=["length", "width", "weight"])
    number = (flowers["length"] > 0) + (flowers["weight"] > 1).astype(int)
    if "regression" in kind:
        return flowers, flowers["length"] * 2 + flowers["width"]
    return flowers, number if "numbers" in kind else np.array(["red", "white", "blue"])[number]


def _of_people(model: Any) -> Any:
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["job"]), (StandardScaler(), ["age", "hours"])
    )
    return make_pipeline(columns, model)


def _sklearn(module: str, name: str, **settings: Any) -> Callable[[], Any]:
    def build() -> Any:
        import importlib

        return getattr(importlib.import_module(f"sklearn.{module}"), name)(**settings)

    return build


def _lightgbm(name: str) -> Callable[[], Any]:
    def build() -> Any:
        import lightgbm

        return getattr(lightgbm, name)(n_estimators=5, verbose=-1)

    return build


def _xgboost(name: str) -> Callable[[], Any]:
    def build() -> Any:
        import xgboost

        return getattr(xgboost, name)(n_estimators=5)

    return build


_MODELS: dict[str, Callable[[], Any]] = {
    "people, logistic": lambda: _of_people(_sklearn("linear_model", "LogisticRegression")()),
    "forest": _sklearn("ensemble", "RandomForestClassifier", n_estimators=10, random_state=0),
    "histogram": _sklearn("ensemble", "HistGradientBoostingClassifier", max_iter=10),
    "network": _sklearn(
        "neural_network", "MLPClassifier", hidden_layer_sizes=(8,), max_iter=30, random_state=0
    ),
    "vectors": _sklearn("svm", "SVC", random_state=0),
    "nearest": _sklearn("neighbors", "KNeighborsClassifier"),
    "regression, ridge": _sklearn("linear_model", "Ridge"),
    "lightgbm": _lightgbm("LGBMClassifier"),
    "people, lightgbm": lambda: _of_people(_lightgbm("LGBMClassifier")()),
    "numbers, lightgbm": _lightgbm("LGBMClassifier"),
    "regression, lightgbm": _lightgbm("LGBMRegressor"),
    "numbers, xgboost": _xgboost("XGBClassifier"),
    "regression, xgboost": _xgboost("XGBRegressor"),
}


def _save(model: Any, file: str) -> None:
    if file.endswith(".txt"):
        model.booster_.save_model(file)
    elif file.endswith((".json", ".ubj")):
        model.save_model(file)
    else:
        import joblib

        joblib.dump(model, file)


def _table(name: str, family: str, kind: str, file: str) -> Subject:
    trust = ("--trust",) if file.endswith((".joblib", ".pkl")) else ()
    arguments = {"kind": kind, "file": file}
    return Subject(name, family, f"{__name__}:make", _NEEDS[family], arguments, trust)


_UNTRUSTED = Subject(
    "a pickle without --trust", SKLEARN, f"{__name__}:make", _NEEDS[SKLEARN],
    {"kind": "forest", "file": "model.pkl"}, refused="--trust",
)  # fmt: skip

SUBJECTS = (
    _table("logistic regression, texts among the columns", SKLEARN, "people, logistic", "model.joblib"),
    _table("random forest", SKLEARN, "forest", "model.pkl"),
    _table("gradient boosting by histograms", SKLEARN, "histogram", "model.joblib"),
    _table("multilayer perceptron", SKLEARN, "network", "model.joblib"),
    _table("support vectors, labels alone", SKLEARN, "vectors", "model.joblib"),
    _table("nearest neighbours", SKLEARN, "nearest", "model.joblib"),
    _table("ridge regression", SKLEARN, "regression, ridge", "model.joblib"),
    _UNTRUSTED,
    _table("estimator, names of classes", LIGHTGBM, "lightgbm", "model.joblib"),
    _table("in a pipeline, texts among the columns", LIGHTGBM, "people, lightgbm", "model.joblib"),
    _table("classes, .txt", LIGHTGBM, "numbers, lightgbm", "model.txt"),
    _table("regression, .txt", LIGHTGBM, "regression, lightgbm", "model.txt"),
    _table("classes, .json", XGBOOST, "numbers, xgboost", "model.json"),
    _table("regression, .ubj", XGBOOST, "regression, xgboost", "model.ubj"),
)
