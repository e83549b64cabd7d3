"""The names of a model's classes as an option of a command gives them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.text_lines import read_lines


def given_labels(text: str) -> tuple[str, ...]:
    """Names separated by commas, or of a file with one a line; none for an empty text. Raises ConfigError."""
    path = Path(text)
    if text and "," not in text and path.is_file():
        try:
            labels = [label.strip() for label in read_lines(path)]
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"--labels {text} can't be read as UTF-8 text ({exc})") from exc
        if not labels or not all(labels):
            raise ConfigError(f"--labels {text} has no label on line {len(labels) and labels.index('') + 1}")
        return tuple(labels)
    return tuple(label for part in text.split(",") if (label := part.strip()))


def flaw_of_count(labels: Sequence[str], classes: Sequence[int]) -> str:
    """What is wrong where no output has as many classes as there are labels; empty where nothing is.

    classes: of each output that may have them, -1 for any number.
    """
    if not labels or not classes or len(labels) in classes or -1 in classes:
        return ""
    told = " or ".join(map(str, dict.fromkeys(classes)))
    return f"--labels has {len(labels)} names, and the model has {told} classes: name each class once"
