"""The text of arrays, held against NumPy's own printing."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pipeline.wire.value_texts import array_repr


def numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, npt.NDArray[Any]]:
    """One array for each way NumPy prints numbers."""
    normal = rng.standard_normal(shape)
    shares = np.exp(normal * 3)
    return {
        "normal": normal,
        "scaled": normal * 10.0 ** rng.integers(-8, 9),
        "rounded": np.round(normal, int(rng.integers(0, 6))),
        "far-apart": 10.0 ** rng.uniform(-30, 30, shape),
        "three-digit-exponents": 10.0 ** rng.uniform(-300, 300, shape) * rng.choice([-1, 1], shape),
        "positive": np.abs(normal),
        "fractions": rng.integers(-2000, 2000, shape) / rng.choice([1, 2, 8, 1024, 3]),
        "shares": shares / shares.sum(),
        "zeros": rng.choice([0.0, -0.0, 1.0, -1.25, 1e-3], shape),
        "not-finite": rng.choice([np.nan, np.inf, -np.inf, 1.5, -70000.0], shape),
        "nothing-finite": rng.choice([np.nan, np.inf], shape),
        "large": normal * 10.0 ** rng.integers(0, 19),
    }


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u1", "i4", "i8", "u8", ">f4", "?", "c8"])
@pytest.mark.parametrize("shape", [(1,), (1, 15), (40,), (3, 60), (2, 3, 7), (2, 1, 2, 3, 5)], ids=str)
def test_numbers_are_printed_as_numpy_prints_them(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(7)
    with np.printoptions(legacy="1.25", threshold=sys.maxsize), np.errstate(all="ignore"):
        for name, values in numbers(rng, shape).items():
            array = values.astype(dtype)
            assert array_repr(array) == repr(array), name


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_a_single_number_is_printed_as_numpy_prints_it(dtype: str) -> None:
    rng = np.random.default_rng(11)
    shares, halves = rng.random(500), rng.integers(-(2**26), 2**26, 500) / 2.0 ** rng.integers(0, 30, 500)
    values = np.concatenate([shares, np.round(shares, 3), halves, [0.0, -0.0, 1.0, 2.0**23, 2.0**23 - 0.5]])
    with np.printoptions(legacy="1.25"), np.errstate(over="ignore"):
        for number in values.astype(dtype):
            array = np.array([number])
            assert array_repr(array) == repr(array)


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5),
        np.zeros((0, 3), "f4"),
        np.zeros(0),
        np.array(["x"]),
        np.array([None]),
        np.arange(6)[::2],
    ],
    ids=["0-d", "no-rows", "empty", "text", "objects", "strided"],
)
def test_what_is_no_plain_array_of_numbers_is_printed_too(array: npt.NDArray[Any]) -> None:
    assert array_repr(array) == repr(array)


def test_a_float32_of_a_ten_thousandth_has_an_exponent_as_under_numpy_1() -> None:
    assert array_repr(np.array([0.0001], "f4")) == "array([1.e-04], dtype=float32)"
