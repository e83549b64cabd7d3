"""The names of a model's classes as an option of a command gives them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.text_lines import read_lines

IMAGE_RANK = 4  # of a feed: [N, C, H, W] or [N, H, W, C]
_ENTAILMENT = re.compile(r"(?i)entail(ment|s|ed)?|蕴含|蕴涵")


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


def class_counts(feeds: Iterable[Sequence[int]], fetches: Iterable[Sequence[int]]) -> list[int]:
    """The last length of each output that may hold scores of classes, by the shapes of a model.

    What a detector of things in images finds, [N, boxes, 85] say, is no such.
    """
    ranks = (2,) if any(len(shape) == IMAGE_RANK for shape in feeds) else (2, 3)
    return [shape[-1] for shape in fetches if len(shape) in ranks]


def flaw_of_count(labels: Sequence[str], classes: Sequence[int]) -> str:
    """What is wrong where no output has as many classes as there are labels; empty where nothing is.

    classes: see `class_counts`.
    """
    if not labels or not classes or len(labels) in classes or -1 in classes:
        return ""
    told = " or ".join(map(str, dict.fromkeys(classes)))
    return f"--labels has {len(labels)} names, and the model has {told} classes: name each class once"


def find_entailment(labels: Sequence[str]) -> int | None:
    """The class of an NLI model that means entailment; None where the labels name no such, or several."""
    found = [index for index, label in enumerate(labels) if _ENTAILMENT.fullmatch(label.strip())]
    return found[0] if len(found) == 1 else None
