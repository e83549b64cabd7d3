"""Class labels of a model: from an option, a file or config.json; and the output with a score per class."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.models.signature import Variable
from pipeline.text_lines import read_lines, split_lines

IMAGE_RANK = 4  # of a feed: [N, C, H, W] or [N, H, W, C]
_ENTAILMENT = re.compile(r"(?i)entail(ment|s|ed)?|蕴含|蕴涵")


def given_labels(text: str) -> tuple[str, ...]:
    """Return the labels that the option `--labels` gives: comma-separated names, or a file of names.

    The file has a name per line. Raises ConfigError for a file that can't be read.
    """
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
    """Return the number of classes of each model output that may hold class scores.

    `feeds` and `fetches` are shapes of the inputs and outputs. Outputs of object detectors, such as [N,
    boxes, 85], do not count as class scores.
    """
    ranks = (2,) if any(len(shape) == IMAGE_RANK for shape in feeds) else (2, 3)
    return [shape[-1] for shape in fetches if len(shape) in ranks]


def check_label_count(labels: Sequence[str], classes: Sequence[int]) -> str:
    """Return an error message if no output has as many classes as there are labels, else "".

    `classes` is the result of `class_counts`.
    """
    if not labels or not classes or len(labels) in classes or -1 in classes:
        return ""
    counts = " or ".join(map(str, dict.fromkeys(classes)))
    return f"--labels has {len(labels)} names, and the model has {counts} classes: name each class once"


def find_entailment(labels: Sequence[str]) -> int | None:
    """Return the number of the entailment class of an NLI model; None if not exactly one label names it."""
    matches = [index for index, label in enumerate(labels) if _ENTAILMENT.fullmatch(label.strip())]
    return matches[0] if len(matches) == 1 else None


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
_MAX_BYTES = 4 << 20
_NUMBERED = re.compile(r"(\d+)\s+(\S.*)|(\S.*?)\s+(\d+)")


def labels_beside(folders: Sequence[Path]) -> tuple[str, ...]:
    """Return the labels of the first label file in these folders; empty if there is none.

    Raises ConfigError for a file that can't be read.
    """
    for folder in folders:
        for name in LABEL_FILES:
            if (folder / name).is_file():
                return _labels_in(folder / name)
    return ()


def _labels_in(path: Path) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("utf-8-sig")
        names = _of_json(json.loads(text)) if path.suffix == ".json" else _of_lines(split_lines(text))
    except (OSError, ValueError, RecursionError) as exc:
        raise ConfigError(f"{path} can't be read as names of classes ({exc}): give --labels") from exc
    if not names or not all(names):
        raise ConfigError(f"{path} does not name each class from 0 on: give --labels")
    return tuple(names)


def _of_json(value: Any) -> list[str]:
    """Return labels from JSON: a list of names, or an object from number to name or from name to number."""
    if isinstance(value, list):
        return [str(name) for name in value]
    if not isinstance(value, dict):
        return []
    by_name = all(isinstance(number, int) for number in value.values())
    pairs = [(number, name) if by_name else (name, number) for name, number in value.items()]
    return _in_order({int(number): str(name) for number, name in pairs})


def _of_lines(lines: Sequence[str]) -> list[str]:
    """Return labels from lines: a name, or a number and a name in either order (tag.dic of LAC)."""
    lines = [line.strip() for line in lines if line.strip()]
    matches = [_NUMBERED.fullmatch(line) for line in lines]
    if lines and all(matches):
        numbered_lines = [m for m in matches if m is not None]
        numbered = {int(m[1] or m[4]): (m[2] or m[3]) for m in numbered_lines}
        if sorted(numbered) == list(range(len(lines))):
            return _in_order(numbered)
    return lines


def _in_order(by_number: Mapping[int, str]) -> list[str]:
    return [by_number.get(number, "") for number in range(len(by_number))]


def _may_be_scores(fetch: Variable) -> bool:
    return len(fetch.shape) in (2, 3) and fetch.dtype.startswith(("float", "bfloat"))


def find_score_fetch(fetches: Sequence[Variable], labels: Sequence[str]) -> Variable | None:
    """Return the only model output with a score per class; None if there is no such output or several."""
    floats = [fetch for fetch in fetches if _may_be_scores(fetch)]
    if labels:
        candidates = [f for f in floats if f.shape[-1] == len(labels)] or [
            f for f in floats if f.shape[-1] == -1
        ]
    else:
        candidates = [f for f in floats if len(f.shape) == 2 and f.shape[-1] not in (-1, 1)]
    return candidates[0] if len(candidates) == 1 else None


# Models whose positions start after the padding id.
_POSITIONS_BEHIND_PADDING = ("camembert", "roberta", "xlm-roberta")
_TASKS = {
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMaskedLM": "fill-mask",
    "Model": "feature-extraction",
}


def get_labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names in `id2label` of a config.json; empty for the placeholders LABEL_0, ..."""
    named = config.get("id2label")
    if not isinstance(named, dict) or not all(str(index) in named for index in range(len(named))):
        return ()
    labels = tuple(str(named[str(index)]) for index in range(len(named)))
    return () if all(label == f"LABEL_{index}" for index, label in enumerate(labels)) else labels


def is_multi_label(config: Mapping[str, Any]) -> bool:
    """Whether a config.json of transformers or PaddleNLP declares multi-label classification."""
    return config.get("problem_type") == "multi_label_classification"


def get_task(architecture: str) -> str:
    """Return the task, as model hubs name it, of a transformers or PaddleNLP class; empty if unknown."""
    return next((task for ending, task in _TASKS.items() if architecture.endswith(ending)), "")


def get_max_length(config: Mapping[str, Any]) -> int:
    """Return the maximum tokens of a text, from the number of positions in a config.json; 0 if unknown."""
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int) or isinstance(positions, bool):
        return 0
    if config.get("model_type") in _POSITIONS_BEHIND_PADDING:
        padding = config.get("pad_token_id", 1)
        positions -= padding + 1 if isinstance(padding, int) else 0
    return max(0, positions)
