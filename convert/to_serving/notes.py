"""Reads and writes model_notes.json beside a converted model: task, labels, padding, tokenizer files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.errors import ConversionError

NOTES_FILE = "model_notes.json"
TOKENIZER_FILES = (
    "added_tokens.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "spm.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)


PROOF_KEY = "proof"


@dataclass(frozen=True)
class ModelNotes:
    """The content of model_notes.json beside a converted model, for `convert serving --with-notes`."""

    task: str
    architecture: str = ""
    labels: tuple[str, ...] = ()
    padding: str = ""  # in the form of --padding; proven before use
    outputs: tuple[str, ...] = ()  # names for the fetches, in order
    files: tuple[str, ...] = ()  # names of files beside the program
    multi_label: bool = False  # whether several labels may hold at once
    described: Mapping[str, Any] = field(default_factory=dict)  # inputs and outputs for serving.yml
    sentence: Mapping[str, Any] = field(
        default_factory=dict
    )  # settings of a sentence encoder; PROOF_KEY: vectors


def write_notes(directory: Path, notes: ModelNotes) -> None:
    """Write model_notes.json to a converted model's folder."""
    text = json.dumps(asdict(notes), indent=2, ensure_ascii=False)
    (directory / NOTES_FILE).write_text(f"{text}\n", encoding="utf-8")


def carry_notes(source: Path, folder: Path, outputs: Sequence[str]) -> None:
    """Copy model_notes.json and the files named there from one model folder to another.

    outputs: names of the model's outputs, stored if the notes have none. If `source` has no notes, new notes
    with these names are written.
    """
    notes = read_notes(source) if (source / NOTES_FILE).is_file() else ModelNotes(task="")
    for name in notes.files:
        shutil.copyfile(source / name, folder / name)
    write_notes(folder, replace(notes, outputs=notes.outputs or tuple(outputs)))


def read_notes(directory: Path) -> ModelNotes:
    """Read model_notes.json of a folder. Raises ConversionError if it is missing or unusable."""
    path = directory / NOTES_FILE
    try:
        notes = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConversionError(
            f"{directory} has no {NOTES_FILE} for --with-notes; leave that out and give --labels and such."
        ) from None
    except (OSError, ValueError) as exc:
        raise ConversionError(f"{path} can't be read ({exc}); convert the model again.") from exc
    if not isinstance(notes, dict) or not isinstance(notes.get("task"), str):
        raise ConversionError(f"{path} is not what convert writes; convert the model again.")
    return ModelNotes(
        task=notes["task"],
        architecture=_get_text(notes, "architecture", path),
        labels=_texts(notes, "labels", path),
        padding=_get_text(notes, "padding", path),
        outputs=_texts(notes, "outputs", path),
        files=tuple(Path(name).name for name in _texts(notes, "files", path)),
        multi_label=notes.get("multi_label") is True,
        described=_check_mapping(notes, "described", path),
        sentence=_check_mapping(notes, "sentence", path),
    )


def text_padding(feeds: Iterable[str], pad_id: int) -> str:
    """Return the --padding value of a text model: its padding id for input_ids, 0 for other inputs.

    The attention mask hides the other inputs.
    """
    return ",".join(f"{feed}={pad_id if feed == 'input_ids' else 0}" for feed in feeds)


def tokenizer_files(directory: Path) -> list[Path]:
    """Return the paths of the tokenizer's files in a model's folder, in alphabetical order."""
    return [directory / name for name in TOKENIZER_FILES if (directory / name).is_file()]


def _check_mapping(notes: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    value = notes.get(key, {})
    if not isinstance(value, dict):
        raise ConversionError(f"{path}: {key!r} is not what convert writes; convert the model again.")
    return value


def _get_text(notes: dict[str, Any], key: str, path: Path) -> str:
    (text,) = _all_texts([notes.get(key, "")], key, path)
    return text


def _texts(notes: dict[str, Any], key: str, path: Path) -> tuple[str, ...]:
    value = notes.get(key, [])
    return _all_texts(value if isinstance(value, list) else [None], key, path)


def _all_texts(values: Sequence[object], key: str, path: Path) -> tuple[str, ...]:
    texts = tuple(value for value in values if isinstance(value, str))
    if len(texts) != len(values):
        raise ConversionError(f"{path}: {key!r} is not what convert writes; convert the model again.")
    return texts
