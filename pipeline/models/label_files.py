"""Names of a model's classes in files beside it, as PaddleNLP and others write them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.text_lines import split_lines

LABEL_FILES = (
    "label_vocab.txt",
    "label_list.txt",
    "labels.txt",
    "label.txt",
    "classes.txt",
    "tag.dic",
    "label_map.json",
    "id2label.json",
)
_MOST_BYTES = 4 << 20
_NUMBERED = re.compile(r"(\d+)\s+(\S.*)|(\S.*?)\s+(\d+)")


def labels_beside(folders: Sequence[Path]) -> tuple[str, ...]:
    """The names in the first of the files that is there; none without one. Raises ConfigError."""
    for folder in folders:
        for name in LABEL_FILES:
            if (folder / name).is_file():
                return _labels_in(folder / name)
    return ()


def _labels_in(path: Path) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8-sig")
        found = _of_json(json.loads(text)) if path.suffix == ".json" else _of_lines(split_lines(text))
    except (OSError, ValueError, RecursionError) as exc:
        raise ConfigError(f"{path} can't be read as names of classes ({exc}): give --labels") from exc
    if not found or not all(found):
        raise ConfigError(f"{path} does not name each class from 0 on: give --labels")
    return tuple(found)


def _of_json(value: Any) -> list[str]:
    """A list of names, or an object: by number the name, or by name the number."""
    if isinstance(value, list):
        return [str(name) for name in value]
    if not isinstance(value, dict):
        return []
    by_name = all(isinstance(number, int) for number in value.values())
    pairs = [(number, name) if by_name else (name, number) for name, number in value.items()]
    return _in_order({int(number): str(name) for number, name in pairs})


def _of_lines(lines: Sequence[str]) -> list[str]:
    """A name on each line, or a number with its name in either order (tag.dic of LAC)."""
    lines = [line.strip() for line in lines if line.strip()]
    matches = [_NUMBERED.fullmatch(line) for line in lines]
    if lines and all(matches):
        found = [m for m in matches if m is not None]
        numbered = {int(m[1] or m[4]): (m[2] or m[3]) for m in found}
        if sorted(numbered) == list(range(len(lines))):
            return _in_order(numbered)
    return lines


def _in_order(by_number: Mapping[int, str]) -> list[str]:
    return [by_number.get(number, "") for number in range(len(by_number))]
