"""Loads weights into a Paddle Layer, from arrays or from a .pdparams file without running pickled code."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from convert.programs.program_feeds import Array
from pipeline.errors import ConversionError

MAX_BYTES = 64 << 30
# paddle.save stores this table of names beside the arrays.
_NAME_TABLE = "StructuredToParameterName@@"

# All that arrays and dictionaries of them need; numpy 1 and 2 name the first one differently.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("collections", "OrderedDict"),
    ("builtins", "tuple"),
    ("_codecs", "encode"),
}


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler that builds only NumPy arrays and containers, so that a file can't run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs")
        return super().find_class(module, name)


def read_params(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read a .pdparams file, written by `paddle.save(layer.state_dict(), path)`, as arrays by name.

    bfloat16 arrays are returned as uint16. Raises ConversionError if the file is absent, or is not a
    dictionary of arrays.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConversionError(
                f"{path} is over {MAX_BYTES >> 30} GiB; export the model from your own code."
            )
        with path.open("rb") as file:
            content = _ArrayUnpickler(file).load()
    except OSError as exc:
        raise ConversionError(f"{path} can't be read ({exc.strerror}); name a .pdparams file.") from exc
    except ConversionError:
        raise
    except Exception as exc:  # a broken pickle raises nearly anything
        raise ConversionError(
            f"{path} is not a file of paddle.save(layer.state_dict(), ...): {' '.join(str(exc).split())}."
        ) from exc
    return _check_arrays(content, path)


def _check_arrays(content: object, path: Path) -> dict[str, npt.NDArray[Any]]:
    if not isinstance(content, dict):
        raise ConversionError(f"{path} holds a {type(content).__name__}, not a state_dict; save that.")
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, value in content.items():
        if name == _NAME_TABLE:
            continue
        if isinstance(value, tuple) and len(value) == 2:  # (parameter name, array)
            value = value[1]
        if not isinstance(name, str) or not isinstance(value, np.ndarray):
            raise ConversionError(
                f"{path}: {name!r} is a {type(value).__name__}, not an array; save layer.state_dict() alone."
            )
        arrays[name] = value
    return arrays


def load_params(layer: Any, path: Path, *, allow_extra: bool = False) -> list[str]:
    """Set every weight of `layer` from a .pdparams file. Returns the names of arrays that are not weights.

    Raises ConversionError as `set_weights`, and for a file that can't be read.
    """
    return set_weights(layer, read_params(path), path, allow_extra=allow_extra)


def set_weights(
    layer: Any, arrays: Mapping[str, Array], path: Path, *, allow_extra: bool = False
) -> list[str]:
    """Set every weight of `layer` from arrays by name. Returns the names of arrays that are not weights.

    path: the file of the arrays, for messages. Raises ConversionError unless names and shapes match;
    `allow_extra` accepts extra arrays.
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
