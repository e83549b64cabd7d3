"""Files of rows by their endings, and pyarrow, which only Parquet needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError

JSONL, CSV, PARQUET = "JSON lines", "CSV", "Parquet"
_FORMATS = {".jsonl": JSONL, ".ndjson": JSONL, ".json": JSONL, ".csv": CSV, ".tsv": CSV, ".parquet": PARQUET}


def detect_format(path: Path) -> str:
    """The format of a file, by its name. Raises ConfigError for another."""
    found = _FORMATS.get(path.suffix.lower())
    if found is None:
        raise ConfigError(f"{path}: its rows can't be told by its name; it ends with {', '.join(_FORMATS)}")
    return found


def get_separator(path: Path) -> str:
    """What stands between two cells of a line."""
    return "\t" if path.suffix.lower() == ".tsv" else ","


def pyarrow() -> Any:
    """The library. Raises ConfigError, with the line for pip, where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as exc:
        raise ConfigError(
            "Parquet is read and written by pyarrow, which is not installed here: pip install pyarrow"
        ) from exc
    return pyarrow
