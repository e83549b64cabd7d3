"""The weights of a Layer, set from arrays or from a .pdparams file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convert.from_paddle.params_file import read_params
from convert.programs.program_feeds import Array
from pipeline.errors import ConversionError


def load_params(layer: Any, path: Path, *, allow_extra: bool = False) -> list[str]:
    """Set every weight of `layer` from a .pdparams file, as `set_weights` does."""
    return set_weights(layer, read_params(path), path, allow_extra=allow_extra)


def set_weights(
    layer: Any, arrays: Mapping[str, Array], path: Path, *, allow_extra: bool = False
) -> list[str]:
    """Set every weight of `layer` from the arrays of the file `path`; return the names of extra arrays.

    Raises ConversionError unless names and shapes match; `allow_extra` accepts extra arrays.
    """
    state = layer.state_dict()
    absent, extra = sorted(state.keys() - arrays.keys()), sorted(arrays.keys() - state.keys())
    if absent or (extra and not allow_extra):
        what = f"lacks {absent[0]!r}" if absent else f"has {extra[0]!r}, which the layer lacks"
        raise ConversionError(
            f"{path} {what} ({len(absent)} missing, {len(extra)} extra); is it of this model?"
        )
    for name, tensor in state.items():
        if tuple(tensor.shape) != arrays[name].shape:
            raise ConversionError(
                f"{path}: {name!r} has shape {list(arrays[name].shape)}, the layer's is {list(tensor.shape)}."
            )
    layer.set_state_dict({name: arrays[name] for name in state})
    return extra
