"""`BatchEncoding`: the result of a tokenizer's call, a dict whose entries are also attributes."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from typing import Any

import numpy as np


class BatchEncoding(UserDict[str, Any]):
    """The inputs for a model by name (`input_ids`, `token_type_ids`, ...): lists, or arrays.

    tensor_type: "np" for NumPy arrays, "pd" for Paddle tensors, None for lists. prepend_batch_axis: gives
    arrays of one text the shape [1, length]. Raises ValueError if lists of different lengths would form an
    array.
    """

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        encoding: Any = None,
        tensor_type: Any = None,
        prepend_batch_axis: bool = False,
    ) -> None:
        super().__init__(data or {})
        self.convert_to_tensors(tensor_type, prepend_batch_axis)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, str):
            return self.data[item]
        raise KeyError(
            f"[{item!r}] of a tokenizer's answer: it is a dict by name; with return_dict=False it is a list"
        )

    def __getattr__(self, item: str) -> Any:
        try:
            return self.__dict__["data"][item]
        except KeyError:
            raise AttributeError(f"a tokenizer's answer has no {item!r}") from None

    def convert_to_tensors(self, tensor_type: Any = None, prepend_batch_axis: bool = False) -> BatchEncoding:
        """Convert each entry to an array in place, and return this object.

        The class docstring describes the arguments.
        """
        if tensor_type is None:
            return self
        kind = getattr(tensor_type, "value", tensor_type)
        if kind not in ("np", "pd"):
            raise ValueError(f"{tensor_type!r} is not a valid TensorType, please select one of ['pd', 'np']")
        for key, value in self.data.items():
            rows = [value] if prepend_batch_axis else value
            try:
                array = np.asarray(rows)
            except ValueError:
                raise ValueError(
                    f"{key} holds lists of different lengths, which make no array: tokenize with "
                    "padding=True "
                    "and truncation=True"
                ) from None
            self.data[key] = array if kind == "np" else _paddle_tensor(array)
        return self


def _paddle_tensor(array: Any) -> Any:
    import paddle

    return paddle.to_tensor(array)


def as_lists(value: Any) -> Any:
    """Convert NumPy arrays and Paddle tensors to lists; return other values unchanged."""
    if isinstance(value, (dict, UserDict)):
        return {key: as_lists(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_lists(entry) for entry in value]
    if hasattr(value, "numpy"):
        value = value.numpy()
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
