"""Collate functions, which batch samples to arrays: pad, stack, and either for each field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Batchify = Callable[[list[Any]], Any]


class Stack:
    """Stacks samples of equal shape into an array, along a new axis. axis: position of the new batch axis.

    dtype: dtype of the result; None keeps the samples' dtype.
    """

    def __init__(self, axis: int = 0, dtype: npt.DTypeLike | None = None) -> None:
        self._axis = axis
        self._dtype = dtype

    def __call__(self, data: Sequence[Any]) -> Array:
        stacked = np.stack(list(data), axis=self._axis)
        return stacked.astype(self._dtype) if self._dtype else stacked


class Pad:
    """Pads samples to the longest sample along `axis`, then stacks them to an array [n, longest, ...].

    Samples that are single numbers become an array [n]. ret_length: also return the lengths, int32 of shape
    [n]. dtype: dtype of the result; None keeps the dtype of the first sample. pad_right: if False, padding is
    put before the sample.
    """

    def __init__(
        self,
        pad_val: float = 0,
        axis: int = 0,
        ret_length: Any = None,
        dtype: npt.DTypeLike | None = None,
        pad_right: bool = True,
    ) -> None:
        self._pad_val = pad_val
        self._axis = axis
        self._ret_length = ret_length
        self._dtype = dtype
        self._pad_right = pad_right

    def __call__(self, data: Sequence[Any]) -> Any:
        if not isinstance(data[0], (list, np.ndarray)):  # one number for each sample
            return np.asarray(data, dtype=np.int64 if self._dtype is None else self._dtype)
        arrays = [np.asarray(sample) for sample in data]
        lengths = [array.shape[self._axis] for array in arrays]
        longest = max(lengths)
        shape = list(arrays[0].shape)
        shape[self._axis] = longest
        dtype = arrays[0].dtype if self._dtype is None else self._dtype
        padded = np.full((len(arrays), *shape), self._pad_val, dtype)
        for row, array, length in zip(padded, arrays, lengths, strict=True):
            place = [slice(None)] * array.ndim
            place[self._axis] = slice(0, length) if self._pad_right else slice(longest - length, longest)
            if length:
                row[tuple(place)] = array
        return (padded, np.asarray(lengths, dtype="int32")) if self._ret_length else padded


class Tuple:
    """Batches samples that are sequences, with one function for each field: `Tuple(Pad(), Stack())(samples)`.

    Returns the results in one tuple; a function with several results adds all of them.
    """

    def __init__(self, fn: Batchify | Sequence[Batchify], *args: Batchify) -> None:
        if callable(fn):
            self._fn: Sequence[Batchify] = (fn, *args)
        elif args:
            raise AssertionError(
                "Tuple takes functions as Tuple(a, b) or in one list, Tuple([a, b]); not both"
            )
        else:
            self._fn = fn
        for place, function in enumerate(self._fn):
            if not callable(function):
                raise AssertionError(f"Tuple's argument {place} is {type(function).__name__}, not a function")

    def __call__(self, data: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
        if len(data[0]) != len(self._fn):
            raise AssertionError(
                f"samples have {len(data[0])} fields, and Tuple has {len(self._fn)} functions; give as many"
            )
        fields = ([sample[place] for sample in data] for place in range(len(self._fn)))
        return _flat(function(field) for function, field in zip(self._fn, fields, strict=True))


class Dict:
    """Batches samples that are dicts, with a function for each named field: `Dict({"ids": Pad()})(samples)`.

    Returns the results in one tuple, in the order of the functions.
    """

    def __init__(self, fn: Mapping[str, Batchify]) -> None:
        if not isinstance(fn, dict):
            raise AssertionError(f"Dict takes a dict of functions by field, not {type(fn).__name__}")
        for name, function in fn.items():
            if not callable(function):
                raise AssertionError(f"Dict has {type(function).__name__} for {name!r}, which is no function")
        self._fn = fn

    def __call__(self, data: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
        return _flat(function([sample[name] for sample in data]) for name, function in self._fn.items())


def _flat(results: Any) -> tuple[Any, ...]:
    flat: list[Any] = []
    for result in results:
        if isinstance(result, (tuple, list)):
            flat.extend(result)
        else:
            flat.append(result)
    return tuple(flat)
