"""Reads the settings of a Sentence Transformers folder: pooling, greatest length, prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ConversionError

MODULES_FILE = "modules.json"
POOLING_FOLDER = "1_Pooling"
_POOLINGS = {
    "cls_token": "cls",
    "max_tokens": "max",
    "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean_tokens": "weightedmean",
    "lasttoken": "lasttoken",
}
_MODE = "pooling_mode_"


def sentence_settings(folder: Path) -> dict[str, Any]:
    """Return what serving.yml keeps of a sentence encoder; nothing for other models.

    Raises ConversionError for a module or a pooling that a service would leave out.
    """
    modules = _read_json(folder / MODULES_FILE, list)
    pooling = _read_json(folder / _pooling_folder(modules) / "config.json", dict)
    if modules is None and pooling is None:
        return {}
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules or ()]
    if unsupported := [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]:
        raise ConversionError(
            f"{folder / MODULES_FILE} has the module {unsupported[0]}, which is not converted: the "
            "vectors would be others; name a model of Transformer, Pooling and Normalize."
        )
    settings: dict[str, Any] = {}
    if pooling is not None:
        settings["pooling"] = _pooling(pooling, folder / _pooling_folder(modules) / "config.json")
    length = (_read_json(folder / "sentence_bert_config.json", dict) or {}).get("max_seq_length")
    if isinstance(length, int) and length > 0:
        settings["max_tokens"] = length
    return settings | _prompts(folder, pooling or {})


def _pooling_folder(modules: list[Mapping[str, Any]] | None) -> str:
    paths = [
        str(module.get("path")) for module in modules or () if str(module.get("type")).endswith(".Pooling")
    ]
    return paths[0] if paths else POOLING_FOLDER


def _pooling(config: Mapping[str, Any], path: Path) -> str:
    """Return the name of the pooling, as serving.yml has it."""
    named = config.get("pooling_mode")  # of newer versions
    if named in _POOLINGS.values():
        return str(named)
    modes = [key.removeprefix(_MODE) for key, on in config.items() if on is True and key.startswith(_MODE)]
    modes = [named] if isinstance(named, str) else modes
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        description = ", ".join(modes) or "no pooling mode"
        raise ConversionError(f"{path} has {description}; one of {', '.join(_POOLINGS)} can be served.")
    return _POOLINGS[modes[0]]


def _prompts(folder: Path, pooling: Mapping[str, Any]) -> dict[str, Any]:
    path = folder / "config_sentence_transformers.json"
    config = _read_json(path, dict) or {}
    prompts = {name: text for name, text in (config.get("prompts") or {}).items() if text}
    if not prompts:
        return {}
    if pooling.get("include_prompt") is False:
        raise ConversionError(
            f"{folder}: its pooling leaves the tokens of prompts out (include_prompt: false), which a "
            f"service does not; take `prompts` out of {path.name} and convert the model without them."
        )
    default = config.get("default_prompt_name")
    named = {"default_prompt": default} if default in prompts else {}
    return {"prompts": prompts, **named}


def _read_json(path: Path, kind: type) -> Any:
    """Return what a JSON file holds; None where there is none."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise ConversionError(f"{path} can't be read ({exc}); is it whole?") from exc
    if not isinstance(content, kind):
        raise ConversionError(f"{path} is no {kind.__name__} in JSON; is it of Sentence Transformers?")
    return content
