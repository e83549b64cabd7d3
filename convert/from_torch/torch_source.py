"""Checks a PyTorch model's files without importing PyTorch, and lists the targets of its conversion."""

from __future__ import annotations

import json
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convert.programs.torch_file import WEIGHTS
from pipeline.errors import ConversionError

CONFIG_FILE = "config.json"
_HEADER_BYTES = 100 << 20  # limit of the safetensors format
_LFS_POINTER = b"version https://git-lfs"


def is_factory(source: str) -> bool:
    """Return whether `source` has the form module:factory and is no existing path."""
    return ":" in source and not Path(source).exists()


def check_source(source: str) -> None:
    """Check that a Hugging Face directory has a config.json and complete weights; accept a module:factory.

    Raises ConversionError with the file at fault.
    """
    if not is_factory(source):
        read_transformers_config(Path(source))
        for file in weight_files(Path(source)):
            _check_weights(file)


def read_transformers_config(directory: Path) -> dict[str, Any]:
    """Read config.json of a Hugging Face directory.

    Raises ConversionError if it is missing, is not JSON or has no `model_type`.
    """
    path = directory / CONFIG_FILE
    if not directory.is_dir():
        raise ConversionError(
            f"{directory} is not a folder; name a Hugging Face directory ({CONFIG_FILE} and weights) "
            "or module:factory."
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConversionError(
            f"{directory} has no {CONFIG_FILE}; name the folder that save_pretrained() wrote."
        ) from None
    except (OSError, ValueError) as exc:
        raise ConversionError(f"{path} can't be read as JSON ({exc}); fetch it again.") from exc
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ConversionError(f"{path} names no model_type, such as 'bert'; is it a config of transformers?")
    return config


def weight_files(directory: Path) -> list[Path]:
    """Return the weight files of a Hugging Face directory, which may be shards.

    If there are several formats, the format that transformers prefers is used. Raises ConversionError if
    there are no weights.
    """
    for name in WEIGHTS:
        if (directory / name).is_file():
            return [directory / name]
        index = directory / f"{name}.index.json"
        if index.is_file():
            return _shards(index)
    raise ConversionError(
        f"{directory} has no weights ({' or '.join(WEIGHTS)}); fetch them into it, or save the model with "
        "save_pretrained()."
    )


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ConversionError(f"{index} is not an index of weights ({exc!r}); fetch it again.") from exc
    files = [index.parent / name for name in names]
    for file in files:
        if not file.is_file():
            raise ConversionError(f"{index} names {file.name}, which is not beside it; fetch it too.")
    return files


def _check_weights(file: Path) -> None:
    """Raise ConversionError for a truncated weight file, or a Git LFS pointer."""
    try:
        with file.open("rb") as opened:
            start = opened.read(len(_LFS_POINTER))
            if start == _LFS_POINTER:
                raise ConversionError(f"{file} is a Git LFS pointer, not weights; run `git lfs pull` there.")
            opened.seek(0)
            expected_bytes = (
                _safetensors_bytes(opened.read(8), opened) if file.suffix == ".safetensors" else None
            )
    except OSError as exc:
        raise ConversionError(f"{file} can't be read ({exc.strerror}).") from exc
    except (ValueError, KeyError, TypeError, struct.error) as exc:
        raise ConversionError(f"{file} is not a safetensors file; fetch it again.") from exc
    size = file.stat().st_size
    if expected_bytes is not None and size != expected_bytes:
        raise ConversionError(
            f"{file} has {size} bytes where its header tells of {expected_bytes}; fetch it again."
        )
    # Files of PyTorch before 1.6 are no zip archives; PyTorch itself reports their errors.
    if expected_bytes is None and start[:2] == b"PK" and not zipfile.is_zipfile(file):
        raise ConversionError(f"{file} is cut off after {size} bytes; fetch it again.")


def _safetensors_bytes(prefix: bytes, opened: Any) -> int:
    """Return the size that a safetensors file should have according to its header.

    It is 8 bytes for the header's length, plus the header, plus the end of the last tensor.
    """
    (length,) = struct.unpack("<Q", prefix)
    if length > _HEADER_BYTES:
        raise ValueError(length)
    header = json.loads(opened.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return int(8 + length + max(ends, default=0))


TORCH_OPSETS = range(11, 17)
TORCH_OPSET = 16


@dataclass(frozen=True)
class Route:
    """A target of PyTorch conversions: the function that converts, its packages, and the result's name."""

    step: str
    needs: tuple[str, ...]  # packages that the step imports
    name: str
    product: str


ROUTES = {
    "paddle": Route(
        "paddle_step", ("torch", "transformers", "paddle", "paddlenlp"), "Paddle", "Paddle program"
    ),
    "onnx": Route("onnx_step", ("torch", "transformers", "onnx", "onnxruntime"), "ONNX", "ONNX model"),
    "torchscript": Route("torchscript_step", ("torch", "transformers"), "TorchScript", "TorchScript program"),
}


# PaddleNLP has no XLM-R of its own; it is RoBERTa with another vocabulary.
_FAMILIES = {"Bert": "Bert", "Roberta": "Roberta", "XLMRoberta": "Roberta", "Ernie": "Ernie"}
_HEADS = ("Model", "ForSequenceClassification", "ForTokenClassification")
TWINS = "BERT, RoBERTa, ERNIE and XLM-R without a head, or for sequence or token classification"


def has_twin(name: str) -> bool:
    """Return whether PaddleNLP has the architecture of a transformers class."""
    return any(name == family + head for family in _FAMILIES for head in _HEADS)


def twin_name(name: str) -> str:
    """Return the name of PaddleNLP's class for a transformers class, e.g. RobertaModel for XLMRobertaModel.

    Raises ConversionError if PaddleNLP has no such class.
    """
    for family, twin in _FAMILIES.items():
        for head in _HEADS:
            if name == family + head:
                return twin + head
    raise ConversionError(f"{name} has no twin in PaddleNLP that weights can be mapped into ({TWINS} have)")
