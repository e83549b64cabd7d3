"""Loads Hugging Face transformers models and finds their inputs. In the conversion environment only."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from convert.from_torch.torch_source import CONFIG_FILE, read_transformers_config
from convert.programs.engines import first_line
from convert.programs.program_feeds import ProgramTensor
from pipeline.errors import ConversionError

_MODULE, _MASK = "transformers.masking_utils", "sdpa_mask"  # eager attention uses it, too


def make_masks_by_broadcasting() -> None:
    """Replace transformers' attention mask function in this process by one that exporters can trace.

    transformers creates masks with torch.vmap. The exporters of ONNX and TorchScript can't trace torch.vmap:
    they fail with "unordered_map::at" or keep the lengths of the example. Broadcasting makes equal masks.
    Older versions without the function need no replacement.
    """
    try:
        masking = importlib.import_module(_MODULE)
    except ImportError:  # before 4.53 there is none
        return
    if hasattr(masking, _MASK):
        setattr(masking, _MASK, _by_broadcasting(masking))


def _by_broadcasting(masking: Any) -> Callable[..., Any]:
    def mask(
        batch_size: int,
        cache_position: Any,
        kv_length: int,
        kv_offset: int = 0,
        mask_function: Any = masking.causal_mask_function,
        attention_mask: Any = None,
        **_: Any,
    ) -> Any:
        """Return True where a query may attend to a key: an array [batch, 1, queries, keys]."""
        padding = masking.prepare_padding_mask(attention_mask, kv_length, kv_offset, _slice=False)
        if padding is not None:
            mask_function = masking.and_masks(mask_function, masking.padding_mask_function(padding))
        device = cache_position.device
        rows = torch.arange(batch_size, device=device)[:, None, None, None]
        heads = torch.arange(1, device=device)[None, :, None, None]
        keys = torch.arange(kv_length, device=device) + kv_offset
        return mask_function(rows, heads, cache_position[None, None, :, None], keys[None, None, None, :])

    return mask


TEXT_FEEDS = ("input_ids", "attention_mask", "token_type_ids")
_MAX_NAMED = 3


def is_pretrained(model: Any) -> bool:
    """Return whether an object is a transformers model; doesn't import transformers."""
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(model, transformers.PreTrainedModel)


def load_pretrained(directory: Path) -> Any:
    """Load a Hugging Face directory as the class that config.json names, in fp32.

    Raises ConversionError if a weight is missing in the files or the class is unknown.
    """
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

    path, config = directory / CONFIG_FILE, read_transformers_config(directory)
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
    """Return the inputs of a transformers text model, with token_type_ids if it has more than one type.

    Raises ConversionError for other models; `source` is the name in the message.
    """
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
