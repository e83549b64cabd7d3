"""What stands in an Op's output, as a tensor of KServe: its datatype and array."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.dialects.kserve.datatypes import BYTES, Array
from pipeline.errors import UnprintableAnswer
from pipeline.models.dtypes import BY_DATATYPE, BY_NAME
from pipeline.models.tensor_spec import TensorSpec


def tensor_of(name: str, value: Any, spec: TensorSpec | None) -> tuple[str, Array]:
    """An output's datatype and array. Raises UnprintableAnswer for what is no tensor."""
    if isinstance(value, np.ndarray):
        array = value
    else:
        dtype = None if spec is None or spec.datatype in (BYTES, "BF16") else BY_DATATYPE[spec.datatype].numpy
        try:
            array = np.asarray(value, dtype)
        except (ValueError, TypeError, OverflowError) as exc:
            raise no_tensor(name, value) from exc
        if not array.ndim:
            array = array.reshape(1)
    if array.dtype.kind in "SUO":
        return BYTES, array
    if spec is not None and spec.datatype == "BF16" and array.dtype == np.uint16:
        return "BF16", array
    known = BY_NAME.get(array.dtype.name)
    if known is None:
        raise no_tensor(name, value)
    return known.datatype, array


def no_tensor(name: str, value: Any) -> UnprintableAnswer:
    """The refusal of an output that is none."""
    kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    return UnprintableAnswer(f"output {name!r} is {kind}, which is no tensor: numbers, bool, str or bytes")
