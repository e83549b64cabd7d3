"""Finds the configuration, weights and tokenizer of a PaddleNLP model, without importing PaddleNLP."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convert.to_serving.notes import tokenizer_files
from pipeline.errors import ConversionError

CONFIG_FILES = ("config.json", "model_config.json")
WEIGHTS_FILES = ("model_state.pdparams", "model.safetensors")

# Supported models. By task: the end of a class name.
HEADS = {
    "sequence-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
}
TASKS = tuple(HEADS)
# By `model_type`; XLM-R is RoBERTa with a larger vocabulary.
FAMILIES = {"bert": "Bert", "ernie": "Ernie", "roberta": "Roberta", "xlm-roberta": "Roberta"}
# By the start of a class name; longer names first.
_PREFIXES = {"XLMRoberta": "xlm-roberta", "Roberta": "roberta", "Ernie": "ernie", "Bert": "bert"}

_MAX_CONFIG_BYTES = 16 << 20
_MAX_HEADER_BYTES = 100 << 20


@dataclass(frozen=True)
class PaddleNLPSource:
    """A PaddleNLP model to be built: a configuration by name or file, its weights and tokenizer files."""

    name: str
    config: dict[str, Any] | None = None
    weights: Path | None = None
    files: tuple[Path, ...] = ()
    tokenizer: tuple[Path, ...] = ()


def find_source(source: str, *, random_weights: bool) -> PaddleNLPSource:
    """Find the files of a PaddleNLP model by folder, configuration file, or name of a downloaded model.

    random_weights: whether weights are not needed. Raises ConversionError, with a hint, for missing or
    unreadable files.
    """
    path = Path(source)
    if path.is_file():
        if not random_weights:
            raise ConversionError(
                f"{source} is a configuration without weights; name its folder, or add --random-weights."
            )
        return PaddleNLPSource(str(path), read_paddlenlp_config(path), None, (path,))
    if path.is_dir():
        return _from_folder(path, random_weights)
    if "/" in source or path.suffix == ".json":
        raise ConversionError(
            f"{source} is not there; name a folder, a config.json or a name of PaddleNLP's."
        )
    if random_weights:
        return PaddleNLPSource(source)
    home = Path(os.environ.get("PPNLP_HOME") or Path.home() / ".paddlenlp")
    downloaded = home / "models" / source
    if downloaded.is_dir():
        return _from_folder(downloaded, random_weights)
    raise ConversionError(
        f"{source} is neither a folder here nor among PaddleNLP's downloads ({downloaded}), and nothing is "
        "downloaded; name a folder with its files, write module:factory, or add --random-weights for a trial."
    )


def refuse_script(source: str) -> None:
    """Raise ConversionError if `source` is a .py file, with a hint to write module:factory."""
    path = Path(source)
    if path.suffix == ".py":
        raise ConversionError(
            f"{source} is a script; name the class or function that makes the model, as in {path.stem}:build."
        )


def read_paddlenlp_config(path: Path) -> dict[str, Any]:
    """Read a PaddleNLP configuration file, also of old versions, in the form of current PaddleNLP.

    Its `model_type` is one of FAMILIES. Raises ConversionError for other files.
    """
    try:
        with path.open("rb") as file:
            config = json.loads(file.read(_MAX_CONFIG_BYTES))
    except (OSError, ValueError) as exc:
        raise ConversionError(f"{path} is not a configuration in JSON ({exc}); is it whole?") from exc
    if not isinstance(config, dict):
        raise ConversionError(f"{path} holds no configuration of a model; name its config.json.")
    # PaddleNLP 2.3 and before: {"init_args": [{...}], "init_class": "ErnieFor..."}, nested.
    while isinstance(config.get("init_args"), list):
        nested = [entry for entry in config.pop("init_args") if isinstance(entry, dict)]
        for entry in nested:
            config = {**entry, **config}
    if "init_class" in config:
        config["architectures"] = [config.pop("init_class")]
    named = str(next(iter(config.get("architectures") or []), ""))
    family = config.get("model_type") or next(
        (kind for prefix, kind in _PREFIXES.items() if named.startswith(prefix)), ""
    )
    if family not in FAMILIES:
        raise ConversionError(
            f"{path}: model_type {family or named!r} is not one of {', '.join(FAMILIES)}; "
            "write a module:factory for it."
        )
    return {**config, "model_type": family}


def _from_folder(folder: Path, random_weights: bool) -> PaddleNLPSource:
    config = next((folder / name for name in CONFIG_FILES if (folder / name).is_file()), None)
    if config is None:
        raise ConversionError(f"{folder} has no {' or '.join(CONFIG_FILES)}; name the folder of a model.")
    tokenizer = tuple(tokenizer_files(folder))
    values = read_paddlenlp_config(config)
    if random_weights:
        return PaddleNLPSource(str(folder), values, None, (config,), tokenizer)
    weights = next((folder / name for name in WEIGHTS_FILES if (folder / name).is_file()), None)
    if weights is None:
        torch = " (it has PyTorch's: use `paddlewheel convert torch`)" if any(folder.glob("*.bin")) else ""
        raise ConversionError(
            f"{folder} has no weights of Paddle's, {' or '.join(WEIGHTS_FILES)}{torch}; "
            "add them, or --random-weights for a trial."
        )
    if weights.suffix == ".safetensors":
        _require_paddle_layout(weights)
    return PaddleNLPSource(str(folder), values, weights, (config, weights), tokenizer)


def is_written_by_paddle(path: Path) -> bool:
    """Return whether a safetensors file was written by Paddle.

    Raises ConversionError if it is no safetensors file. PyTorch's linear weights are transposed, and for a
    square weight the shapes would not show that.
    """
    return _writer(path) in ("pd", "paddle")


def _require_paddle_layout(path: Path) -> None:
    if not is_written_by_paddle(path):
        raise ConversionError(
            f"{path} was not written by Paddle but for {_writer(path) or 'an unnamed framework'!r}; "
            "use `paddlewheel convert torch`."
        )


def _writer(path: Path) -> str:
    """Return the framework that a safetensors file names, such as "pt"; empty if it names none."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(min(size, _MAX_HEADER_BYTES)))
        return str(header.get("__metadata__", {}).get("format", ""))
    except (OSError, ValueError, AttributeError) as exc:
        raise ConversionError(f"{path} is not a safetensors file ({exc}); is it whole?") from exc
