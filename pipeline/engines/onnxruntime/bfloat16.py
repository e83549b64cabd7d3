"""Runs ONNX models with bfloat16 tensors, whose arrays hold the bits as uint16: NumPy lacks the type."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime

from pipeline.models.tensor_spec import BY_NAME

_NUMBER = BY_NAME["bfloat16"].onnx
_TYPE = "tensor(bfloat16)"


def run_bfloat16(
    session: onnxruntime.InferenceSession,
    outputs: Sequence[str],
    feeds: Mapping[str, np.ndarray[Any, Any]],
    names: Collection[str],
) -> list[np.ndarray[Any, Any]]:
    """Run inference, and return the output arrays in the order of `outputs`.

    names: the inputs of type bfloat16.
    """
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _NUMBER)
        if name in names
        else onnxruntime.OrtValue.ortvalue_from_numpy(array)
        for name, array in feeds.items()
    }
    return [_to_array(value) for value in session.run_with_ort_values(list(outputs), values)]


def _to_array(value: onnxruntime.OrtValue) -> np.ndarray[Any, Any]:
    if value.data_type() != _TYPE:
        return np.asarray(value.numpy())
    shape = value.shape()
    size = math.prod(shape) * np.dtype(np.uint16).itemsize
    bits = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(bits, np.uint16).reshape(shape)
