"""Printed arrays of an answer, read back as lists."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from client.values import parse_array, parse_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("array([3])", [3]),
        ("array([0.98], dtype=float32)", [0.98]),
        ("array(['sports', 'it\\'s'], dtype='<U6')", ["sports", "it's"]),
        ("array([[1, 2],\n       [3, 4]], dtype=int32)", [[1, 2], [3, 4]]),
        ("array([-1.5e-05,        inf,       -inf])", [-1.5e-05, math.inf, -math.inf]),
        ("array(['nan', '[x]'], dtype='<U3')", ["nan", "[x]"]),
        ("array([ True, False])", [True, False]),
        ("array([1.+2.j, 0.-1.j])", [1 + 2j, -1j]),
        ("array([], shape=(0, 3), dtype=float32)", []),
        ("array(7)", 7),
        ("array([0, ..., 9])", "array([0, ..., 9])"),
        ("array([__import__('os').getcwd()])", "array([__import__('os').getcwd()])"),
        ("array(" + "[" * 5000 + "]" * 5000 + ")", "array(" + "[" * 5000 + "]" * 5000 + ")"),
        ("array([1, 2", "array([1, 2"),
        ("sports", "sports"),
        ("", ""),
    ],
    ids=lambda value: str(value)[:30],
)
def test_printed_arrays_become_lists_and_texts_stay(text: str, value: object) -> None:
    assert parse_value(text) == value


def test_nan_is_read_as_nan() -> None:
    found = parse_value("array([1., nan])")
    assert isinstance(found, list)
    assert found[0] == 1.0
    assert isinstance(found[1], float)
    assert math.isnan(found[1])


@pytest.mark.parametrize(
    "array",
    [
        np.array([3, 6]),
        np.array([[0.98, 0.5]], np.float32),
        np.array(["sports", "it's"]),
        np.array([[True], [False]]),
        np.array([1 + 2j, -1j]),
        np.zeros((0, 3), np.float16),
        np.array(7, np.uint8),
        np.array([math.inf, -1e-5]),
    ],
    ids=repr,
)
def test_a_printed_array_has_its_dtype_and_shape_again(array: np.ndarray[Any, np.dtype[Any]]) -> None:
    found = parse_array(repr(array))
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert np.array_equal(found, array)


@pytest.mark.parametrize(
    "text", ["sports", "array([0, ..., 9])", "array([[1], [2, 3]])", "array([1], dtype=x)"]
)
def test_what_is_no_array_stays_text(text: str) -> None:
    assert parse_array(text) == text
