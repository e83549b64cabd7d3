"""The loader of models of transformers, and their feeds. In the conversion environment only."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import torch

from convert.from_torch.attention_masks import make_masks_by_broadcasting
from convert.from_torch.torch_source import CONFIG_FILE, read_config
from convert.programs.engines import first_line
from convert.programs.input_spec import ProgramTensor
from pipeline.errors import ConversionError

TEXT_FEEDS = ("input_ids", "attention_mask", "token_type_ids")
_MAX_NAMED = 3


def is_pretrained(model: Any) -> bool:
    """Return whether this is a model of transformers, without importing transformers."""
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(model, transformers.PreTrainedModel)


def load_pretrained(directory: Path) -> Any:
    """Load the class that config.json names, in fp32; every weight must come from the files."""
    make_masks_by_broadcasting()
    create = _transformers_class(directory)
    try:
        model, info = _load_model(create, directory)
        missing = sorted(info["missing_keys"])
        if missing and all("pooler." in name for name in missing):
            model, info = _load_model(create, directory, add_pooling_layer=False)
            missing = sorted(info["missing_keys"])
    except Exception as exc:
        raise ConversionError(
            f"{directory}: its weights can't be loaded as {create.__name__} ({first_line(exc)}); "
            f"do they belong to its {CONFIG_FILE}?"
        ) from exc
    if missing:
        named = ", ".join(missing[:_MAX_NAMED])
        raise ConversionError(
            f"{directory}: {len(missing)} weights of {create.__name__} are missing ({named}); name a "
            f"complete model, or correct `architectures` in its {CONFIG_FILE}."
        )
    return model


def _load_model(create: Any, directory: Path, **settings: object) -> Any:
    return create.from_pretrained(
        directory,
        local_files_only=True,
        output_loading_info=True,
        attn_implementation="eager",
        dtype=torch.float32,
        **settings,
    )


def _transformers_class(directory: Path) -> Any:
    import transformers

    path, config = directory / CONFIG_FILE, read_config(directory)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    version = transformers.__version__
    if config["model_type"] not in transformers.CONFIG_MAPPING:
        raise ConversionError(
            f"{path}: transformers {version} has no model_type {config['model_type']!r}; write a function "
            "that builds the model and name it as module:factory."
        )
    names = config.get("architectures") or ["AutoModel"]
    create = getattr(transformers, str(names[0]), None)
    if create is None:
        raise ConversionError(
            f"{path}: transformers {version} has no architecture {names[0]!r}; write a function that builds "
            "the model and name it as module:factory."
        )
    return create


def text_feeds(model: Any, source: str) -> tuple[ProgramTensor, ...]:
    """Return the feeds of a text model of transformers, with token types if it has more than one."""
    takes = inspect.signature(model.forward).parameters if is_pretrained(model) else ()
    if "input_ids" not in takes:
        raise ConversionError(
            f"{source}: a {type(model).__name__} doesn't tell its inputs; give --input-spec, names, types "
            "and shapes in the order of forward()."
        )
    names = [name for name in TEXT_FEEDS if name in takes]
    if getattr(model.config, "type_vocab_size", 0) < 2:
        names = [name for name in names if name != "token_type_ids"]
    return tuple(ProgramTensor(name, "int64", (-1, -1)) for name in names)
