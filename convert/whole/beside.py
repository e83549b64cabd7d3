"""The files beside a model: configuration, tokenizer, notes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from convert.from_paddlenlp.paddlenlp_source import CONFIG_FILES
from convert.from_torch.sentence_encoder import sentence_files
from convert.programs.inference_program import read_program
from convert.to_serving.notes import NOTES_FILE, ModelNotes, tokenizer_files
from convert.whole.source_kind import SourceKind

MODEL_FILES = (SourceKind.ONNX, SourceKind.PROGRAM)


def suggested_padding(model: Path, notes: ModelNotes) -> str:
    """Return the padding to prove: from the notes, else all integer feeds of a model with a mask."""
    feeds = {feed.name: feed for feed in read_program(model).feeds}
    if notes.padding:
        return ",".join(part for part in notes.padding.split(",") if part.partition("=")[0] in feeds)
    if "attention_mask" not in feeds:
        return ""
    rows = [f for f in feeds.values() if f.dtype in ("int64", "int32") and f.shape == (-1, -1)]
    return ",".join(f"{feed.name}=0" for feed in rows)


def folder_beside(source: str) -> Path:
    """Return the folder with the configuration of an ONNX model or a program.

    Exports of Hugging Face models leave it in the folder around `onnx/`.
    """
    folder = _folder(source)
    return folder.parent if folder.resolve().name == "onnx" and not config_beside(folder) else folder


def files_beside(source: str, kind: SourceKind) -> list[Path]:
    """Return the files beside an ONNX model or a program that are copied with it."""
    if kind not in MODEL_FILES:
        return []
    folder = folder_beside(source)
    named = [_folder(source) / NOTES_FILE, *(folder / name for name in CONFIG_FILES)]
    paths = [*named, *tokenizer_files(folder), *sentence_files(folder).paths]
    return [path for path in paths if path.is_file()]


def _folder(source: str) -> Path:
    return Path(source) if Path(source).is_dir() else Path(source).parent


def config_beside(folder: Path) -> dict[str, Any]:
    """Read the configuration of transformers or PaddleNLP; return an empty one if there is none."""
    for name in CONFIG_FILES:
        try:
            config = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(config, dict):
            return config
    return {}
