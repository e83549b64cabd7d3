"""Detects the kind of model that a source names, and finds the files beside it."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import Any

from convert.from_paddle.factory import call_factory
from convert.from_paddlenlp.paddlenlp_source import (
    CONFIG_FILES,
    WEIGHTS_FILES,
    is_written_by_paddle,
    refuse_script,
)
from convert.from_tables.convert_table import table_source
from convert.from_torch.sentence_encoder import sentence_files
from convert.from_torch.torch_source import is_factory
from convert.programs.engines import import_paddle
from convert.programs.inference_program import read_model, serving_folder
from convert.programs.torch_file import TORCHSCRIPT, find_torch_file, read_format
from convert.programs.torch_file import WEIGHTS as TORCH_WEIGHTS
from convert.to_serving.notes import NOTES_FILE, ModelNotes, tokenizer_files
from pipeline.errors import ConfigError, ConversionError
from pipeline.models.serving_model import find_model_files

_TORCH = ("torch", "transformers", "safetensors")
_WEIGHTS_ALONE = (".pdparams", ".pdiparams", ".bin", ".safetensors")


class SourceKind(Enum):
    """The kind of model that a source names. Each member's value is its description in messages."""

    LAYER = "a paddle.nn.Layer"
    PADDLENLP = "a model of PaddleNLP"
    TORCH = "a PyTorch model"
    TORCHSCRIPT = "a TorchScript model"
    EXPORTED = "a program of torch.export"
    ONNX = "an ONNX model"
    PROGRAM = "a Paddle inference model"
    TABLE = "a model of tables"


def detect_kind(source: str, *, random_weights: bool = False) -> SourceKind:
    """Return the kind of model that `source` names: module:factory, a folder, a file, or a PaddleNLP name.

    A factory is called. random_weights: whether a folder's configuration without weights is enough. Raises
    ConversionError for another source.
    """
    if is_factory(source):
        return _kind_of_factory(source)
    path = Path(source)
    if (file := find_torch_file(source)) is not None and serving_folder(path) is None:
        return SourceKind.TORCHSCRIPT if read_format(file) == TORCHSCRIPT else SourceKind.EXPORTED
    if path.is_dir():
        return _kind_of_folder(path, random_weights)
    if path.is_file():
        return _kind_of_file(path)
    if "/" in source or path.suffix:
        raise ConversionError(
            f"{source} is not there; name a folder, a .onnx or .pt file, module:factory or a name of "
            "PaddleNLP's."
        )
    return SourceKind.PADDLENLP


def _kind_of_factory(factory: str) -> SourceKind:
    try:
        _, model = call_factory(factory)
    except ConversionError as exc:
        cause = exc.__cause__
        # PyTorch is in the conversion environment alone, where this runs again.
        if isinstance(cause, ModuleNotFoundError) and cause.name in _TORCH:
            return SourceKind.TORCH
        raise
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return SourceKind.TORCH
    if isinstance(model, import_paddle().nn.Layer):
        return SourceKind.LAYER
    raise ConversionError(
        f"{factory} returned a {type(model).__name__}, neither a paddle.nn.Layer nor a torch.nn.Module."
    )


def _kind_of_folder(folder: Path, random_weights: bool) -> SourceKind:
    if serving_folder(folder) is not None:
        raise ConversionError(
            f"{folder} is a serving model already; serve it, or run `paddlewheel convert check {folder}`."
        )
    if any((folder / name).is_file() for name in CONFIG_FILES):
        if random_weights:
            return SourceKind.PADDLENLP
        for name in (*WEIGHTS_FILES, *TORCH_WEIGHTS):
            if (folder / name).is_file():
                paddle = name == WEIGHTS_FILES[0] or is_written_by_paddle(folder / name)
                return SourceKind.PADDLENLP if paddle else SourceKind.TORCH
            if (folder / f"{name}.index.json").is_file():
                return SourceKind.TORCH
    try:
        format_ = find_model_files(folder).format
    except ConfigError as exc:
        weights = ", ".join(dict.fromkeys((*WEIGHTS_FILES, *TORCH_WEIGHTS)))
        raise ConversionError(f"{exc.message.rstrip('.')}, or {CONFIG_FILES[0]} with {weights}.") from exc
    return SourceKind.ONNX if format_ == "onnx" else SourceKind.PROGRAM


def _kind_of_file(path: Path) -> SourceKind:
    if path.suffix == ".onnx":
        return SourceKind.ONNX
    if table_source(path) is not None:
        return SourceKind.TABLE
    if path.name in CONFIG_FILES or (path.suffix == ".json" and not path.with_suffix(".pdiparams").exists()):
        return SourceKind.PADDLENLP
    if path.suffix in _WEIGHTS_ALONE:
        raise ConversionError(
            f"{path} holds weights alone; name the folder with its configuration or program, or "
            "module:factory."
        )
    refuse_script(str(path))
    raise ConversionError(
        f"{path} is no .onnx file or configuration, nor a model of scikit-learn (.joblib, .pkl), LightGBM "
        "(.txt) or XGBoost (.json, .ubj); name the folder of the model."
    )


MODEL_FILES = (SourceKind.ONNX, SourceKind.PROGRAM)
TORCH_FILES = (SourceKind.TORCHSCRIPT, SourceKind.EXPORTED)
EXPORTS = (*MODEL_FILES, *TORCH_FILES)
"""Kinds of exported models, which may have a configuration and a tokenizer beside them."""


def suggested_padding(model: Path, notes: ModelNotes) -> str:
    """Return a --padding value to be proven for the model: from its notes, or 0 for its integer inputs.

    Empty for a model without notes about padding and without an attention mask.
    """
    feeds = {feed.name: feed for feed in read_model(model).feeds}
    if notes.padding:
        return ",".join(part for part in notes.padding.split(",") if part.partition("=")[0] in feeds)
    if "attention_mask" not in feeds:
        return ""
    rows = [f for f in feeds.values() if f.dtype in ("int64", "int32") and f.shape == (-1, -1)]
    return ",".join(f"{feed.name}=0" for feed in rows)


def folder_beside(source: str) -> Path:
    """Return the folder with the Hugging Face or PaddleNLP configuration of an exported model.

    In exports of Hugging Face models, it is the parent folder of `onnx/`.
    """
    folder = _folder(source)
    return folder.parent if folder.resolve().name == "onnx" and not config_beside(folder) else folder


def files_beside(source: str, kind: SourceKind) -> list[Path]:
    """Return the existing files beside an exported model that are copied with it.

    These are notes, configuration, tokenizer and sentence encoder files; empty for other kinds of source.
    """
    if kind not in EXPORTS:
        return []
    folder = folder_beside(source)
    named = [_folder(source) / NOTES_FILE, *(folder / name for name in CONFIG_FILES)]
    paths = [*named, *tokenizer_files(folder), *sentence_files(folder).paths]
    return [path for path in paths if path.is_file()]


def _folder(source: str) -> Path:
    return Path(source) if Path(source).is_dir() else Path(source).parent


def config_beside(folder: Path) -> dict[str, Any]:
    """Read the configuration of transformers or PaddleNLP in a folder; empty if there is none."""
    for name in CONFIG_FILES:
        try:
            config = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(config, dict):
            return config
    return {}
