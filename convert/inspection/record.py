"""The source of a serving model, as its stamp records it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from convert.output.stamp import STAMP_FILE
from pipeline.errors import ConversionError

DEMO = "demo"  # the source in the stamp of the demo


def recorded_source(directory: Path) -> Path | None:
    """Return the source of a serving model; None for a source without a file."""
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
    """Return the name of the source for messages."""
    stamp = read_record(directory)
    return str(stamp.get("made_of") or stamp["source"])


def read_record(directory: Path) -> dict[str, Any]:
    """Read the stamp of a result. Raise ConversionError if it has no source."""
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
