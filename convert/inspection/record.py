"""What a serving model's stamp records of the model that it was made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from convert.output.stamp import STAMP_FILE
from pipeline.errors import ConversionError

DEMO = "demo"  # what the demo's stamp has for a source


def recorded_source(directory: Path) -> Path | None:
    """The model that a serving model was made of; None where that was none in a file."""
    stamp = read_record(directory)
    if "source" not in stamp or stamp["source"] == DEMO:
        return None
    source = Path(str(stamp["source"]))
    if not source.exists():
        raise ConversionError(
            f"{directory} was made of {source}, which is not there; name what to compare with: check MODEL "
            f"{directory}."
        )
    return source


def get_source_name(directory: Path) -> str:
    """What a sentence calls the source by."""
    stamp = read_record(directory)
    return str(stamp.get("made_of") or stamp["source"])


def read_record(directory: Path) -> dict[str, Any]:
    """The stamp of a result. Raises ConversionError where it does not tell the source."""
    try:
        stamp = json.loads((directory / STAMP_FILE).read_text(encoding="utf-8"))
        if stamp.keys() & {"source", "made_of"}:
            return dict(stamp)
        raise KeyError("source")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ConversionError(
            f"{directory / STAMP_FILE} does not tell what {directory} was made of; name it: check MODEL "
            f"{directory}."
        ) from exc
