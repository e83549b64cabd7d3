"""The source file of a table model, and the library that wrote it, found without loading it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ConversionError

PICKLES = (".joblib", ".pkl", ".pickle")
_HEAD_BYTES = 64


@dataclass(frozen=True)
class TableSource:
    """A file with a table model."""

    path: Path
    library: str
    needs: tuple[str, ...]  # packages that the conversion imports
    runs_code: bool = False  # whether loading the file runs code


def table_source(path: Path) -> TableSource | None:
    """Detect the table model in a file; return None for another file."""
    suffix = path.suffix.lower()
    if suffix in PICKLES:
        return TableSource(path, "scikit-learn", ("sklearn", "skl2onnx", "joblib", "onnx"), runs_code=True)
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).lstrip()
    except OSError:
        return None
    if suffix in (".txt", ".lgb", ".model") and head.startswith(b"tree\n"):
        return TableSource(path, "LightGBM", ("lightgbm", "onnxmltools", "onnx"))
    if (suffix in (".json", ".ubj") and b'"learner"' in head) or (suffix == ".ubj" and b"learner" in head):
        return TableSource(path, "XGBoost", ("xgboost", "onnxmltools", "onnx"))
    return None


def require_trust(source: TableSource, trusted: bool) -> None:
    """Raise ConversionError for a file that runs code when it is loaded, unless it is trusted."""
    if source.runs_code and not trusted:
        raise ConversionError(
            f"{source.path} is a pickle: loading it runs whatever code stands in it. Where you know who "
            "wrote it, add --trust; LightGBM's .txt and XGBoost's .json hold no code."
        )
