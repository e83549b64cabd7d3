"""Response values as text, as Paddle Serving's key/value protocol sends them.

A str is sent unchanged, an array as the full repr of NumPy 1, a list of str as its repr.

NumPy takes 0.6 s for the `repr` of 1 x 128 x 768 floats, mostly for joining lines word by word. `array_repr`
is ten times as fast: all words of an array have one width, so a row is cut into lines at once. The layout is
NumPy's `array2string` with default options: 8 digits and lines of 75 characters. Numbers have exponents when
their magnitudes differ by more than 1000 or leave 0.0001 to 1e8.
"""

from __future__ import annotations

import contextvars
import functools
import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from client.protos.pipeline_service_pb2 import Response
from pipeline.errors import UnprintableAnswer

_PREFIX = "array("
_LINE_WIDTH = 75
_PRECISION = 8
_TYPELESS = ("int64", "float64")  # dtypes that the literal implies
_INTEGERS_AND_TEXT = "bhilqBHILQU"
# Below this, the shortest digits that identify a float32 or float64 are exact before the point.
_EXACT_INTEGERS = 2.0**23
_LAYOUT_CACHE_SIZE = 256  # texts have a dtype for each length


# NumPy keeps print options in a context variable: a separate context neither sees nor changes the app's.
# Copying and entering the context costs 0.1 us, `np.printoptions` 10.
_numpy_1 = contextvars.Context()
_numpy_1.run(np.set_printoptions, legacy="1.25", threshold=sys.maxsize)


def format_outputs(outputs: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the keys and values of a response as two lists of texts.

    Raises UnprintableAnswer with err_no 7000 for a value that can't be a text, and 8000 for an invalid key.
    """
    keys, values = list(outputs), list(outputs.values())
    for value in values:
        if type(value) is not str:
            values = _numpy_1.copy().run(_format_values, keys, values)
            break
    for key in keys:
        if type(key) is not str:
            keys = [_check_key(key) for key in keys]
            break
    return keys, values


def build_message(keys: list[str], texts: list[str]) -> Response:
    """Build the protobuf response from keys and texts.

    Raises UnprintableAnswer for a text with a lone surrogate.
    """
    try:
        return Response(key=keys, value=texts)
    except UnicodeEncodeError as exc:
        raise unencodable(exc) from None


def format_value(value: Any) -> str:
    """Return a value as text: the repr of an array, or of another object, with NumPy 1's print options."""
    return _numpy_1.copy().run(array_repr if isinstance(value, np.ndarray) else repr, value)


def array_repr(array: npt.NDArray[Any]) -> str:
    """Return the same text as `repr(array)`, but faster for large arrays of numbers.

    NumPy's print options only apply to arrays that NumPy itself formats: scalars, empty and unusual
    arrays.
    """
    dtype = array.dtype
    if type(array) is not np.ndarray or not array.size or not array.ndim or not dtype.isnative:
        return repr(array)
    if array.size == 1 and (word := _only_word(array)) is not None:
        before, after, room = _around_one_word(dtype, array.ndim)
        if len(word) <= room:
            return f"{before}{word}{after}"
        return _with_dtype(f"{before}{word}{']' * array.ndim}", dtype)
    words: list[str] | None = None
    if dtype.kind in "iu":
        words = _integer_words(array)
    elif dtype.kind == "f" and dtype.itemsize <= 8:
        words = _float_words(array)
    if words is None:
        return repr(array)
    return _with_dtype(f"{_PREFIX}{_nested(words, array.shape)}", dtype)


def _only_word(array: npt.NDArray[Any]) -> str | None:
    """Return the formatted element of a one-element array; None if `repr` must be used instead."""
    kind = array.dtype.char
    if kind in _INTEGERS_AND_TEXT:
        return repr(array.item())
    if kind not in "efd":
        return None
    value: float = array.item()
    if value != 0 and not 0.0001 <= abs(value) < 1e8:
        return None
    if kind == "e" or abs(value) >= _EXACT_INTEGERS:
        return np.format_float_positional(
            array[(0,) * array.ndim], precision=_PRECISION, min_digits=0, trim="."
        )
    # Cheaper than the above. Both round the exact value half to even.
    word = repr(value) if kind == "d" else str(array[(0,) * array.ndim])
    if len(word) - word.index(".") - 1 > _PRECISION:
        return f"{value:.{_PRECISION}f}".rstrip("0")
    return word[:-1] if word.endswith(".0") else word


@functools.lru_cache(_LAYOUT_CACHE_SIZE)
def _around_one_word(dtype: np.dtype[Any], ndim: int) -> tuple[str, str, int]:
    """Return the texts before and after the element of a one-element array, and the room in characters."""
    before, brackets, ending = f"{_PREFIX}{'[' * ndim}", "]" * ndim, _ending(dtype)
    if not ending:
        return before, f"{brackets})", sys.maxsize
    return before, f"{brackets}, {ending}", _LINE_WIDTH - len(before) - ndim - len(", ") - len(ending)


@functools.lru_cache(_LAYOUT_CACHE_SIZE)
def _ending(dtype: np.dtype[Any]) -> str:
    """Return the ending `dtype=...)` of an array's repr; empty for a dtype that the numbers imply."""
    if dtype.name in _TYPELESS:
        return ""
    return f"dtype={dtype.str!r})" if dtype.kind == "U" else f"dtype={dtype.name})"


def _with_dtype(text: str, dtype: np.dtype[Any]) -> str:
    """Append dtype and closing bracket to an array's repr, on a new line if the last line is full."""
    ending = _ending(dtype)
    if not ending:
        return text + ")"
    text += ","
    last_line = len(text) - (text.rfind("\n") + 1)
    fits = last_line + len(ending) + 1 <= _LINE_WIDTH
    return f"{text} {ending}" if fits else f"{text}\n{' ' * len(_PREFIX)}{ending}"


def _integer_words(array: npt.NDArray[Any]) -> list[str]:
    """Return each integer as text, right-aligned to the width of the longest."""
    width = max(len(str(array.max())), len(str(array.min())))
    return [f"{number:{width}d}" for number in array.ravel().tolist()]


def _float_words(array: npt.NDArray[Any]) -> list[str] | None:
    """Return each float as text, all of equal width; None if no element is finite."""
    flat = array.ravel()
    finite = flat[np.isfinite(flat)]
    if not finite.size:
        return None
    if _needs_exponent(finite):
        words, width_after = _scientific(flat, finite)
        width_before = 2 if np.signbit(finite).any() else 1
    else:
        words, width_after, width_before = _positional(flat, finite)
    if finite.size < flat.size:
        negative = bool((flat == -math.inf).any())
        width_before = max(width_before, 3 + negative - width_after - 1, 3 - width_after - 1)
        for index in np.flatnonzero(~np.isfinite(flat)).tolist():
            words[index] = str(float(flat[index]))
    width = width_before + 1 + width_after
    return [word.rjust(width) for word in words]


def _needs_exponent(finite: npt.NDArray[Any]) -> bool:
    """Return whether NumPy would print these numbers in scientific notation."""
    magnitudes = np.absolute(finite[finite != 0])
    if not magnitudes.size:
        return False
    largest, smallest = magnitudes.max(), magnitudes.min()
    with np.errstate(over="ignore"):
        ratio = largest / smallest
    # As doubles, which is how NumPy 1 compared a float32 to 0.0001; NumPy 2 rounds 0.0001 to float32 first.
    return bool(float(largest) >= 1e8 or float(smallest) < 0.0001 or float(ratio) > 1000.0)


def _scientific(flat: npt.NDArray[Any], finite: npt.NDArray[Any]) -> tuple[list[str], int]:
    """Return each float as text in scientific notation, and the number of characters after the decimal point.

    flat: all numbers. finite: the finite numbers among them.
    """
    digits = 0
    for number in finite:
        shortest = np.format_float_scientific(number, precision=_PRECISION, trim=".")
        digits = max(digits, shortest.index("e") - shortest.index(".") - 1)
        if digits == _PRECISION:
            break
    magnitudes = np.absolute(finite[finite != 0])
    extremes = (magnitudes.min(), magnitudes.max())
    exponent = max(len(np.format_float_scientific(x, trim=".").partition("e")[2]) for x in extremes) - 1
    if digits == _PRECISION and exponent == 2:
        # All digits that tell two float32 apart are printed, so the shortest form is the rounded one.
        words = [f"{number:.8e}" for number in flat.tolist()]
    else:
        words = [
            np.format_float_scientific(x, precision=digits, min_digits=digits, trim="k", exp_digits=exponent)
            for x in flat
        ]
    return words, exponent + 2 + digits


def _positional(flat: npt.NDArray[Any], finite: npt.NDArray[Any]) -> tuple[list[str], int, int]:
    """Return each float as text without exponent, and the widths after and before the decimal point.

    flat: all numbers. finite: the finite numbers among them.
    """
    # `min_digits=0` keeps the digits before the point exact: 39936., where the shortest float16 is 39940.
    words = [np.format_float_positional(x, precision=_PRECISION, min_digits=0, trim=".") for x in flat]
    points = [word.find(".") for word in words]
    fractions = [len(word) - point - 1 for word, point in zip(words, points, strict=True)]
    all_finite = finite.size == flat.size
    right = max(fractions if all_finite else [f for f, p in zip(fractions, points, strict=True) if p >= 0])
    words = [word + " " * (right - fraction) for word, fraction in zip(words, fractions, strict=True)]
    return words, right, max(points)


def _nested(words: list[str], shape: tuple[int, ...]) -> str:
    """Return the brackets and lines of an array's repr. words: text of each element, all of equal width.

    A line is broken where the next word would exceed the line width.
    """
    indent = " " * (len(_PREFIX) + len(shape))
    width = _LINE_WIDTH - 1 - (len(shape) - 1) - 1  # less the final ")", a "]" per axis and the comma
    step = len(words[0]) + 2
    per_line = max(1, (width - len(indent) - len(words[0])) // step + 1)
    row = shape[-1]
    glue = ",\n" + indent
    parts = []
    for start in range(0, len(words), row):
        lines = range(start, start + row, per_line)
        parts.append(
            "[" + glue.join(", ".join(words[i : min(i + per_line, start + row)]) for i in lines) + "]"
        )
    for axis in range(len(shape) - 2, -1, -1):
        separator = "," + "\n" * (len(shape) - 1 - axis) + " " * (len(_PREFIX) + 1 + axis)
        size = shape[axis]
        parts = ["[" + separator.join(parts[i : i + size]) + "]" for i in range(0, len(parts), size)]
    return parts[0]


def _format_values(keys: list[Any], values: list[Any]) -> list[str]:
    """Return each value as text.

    Call this in a copy of the context `_numpy_1`, which has NumPy 1's print options. All values are arrays
    and lists of str, or all are str. The first element decides the type of a list. Raises UnprintableAnswer.
    """
    texts = []
    for value in values:
        if isinstance(value, np.ndarray):
            texts.append(array_repr(value))
        elif isinstance(value, list) and value and isinstance(value[0], str):
            texts.append(repr(value))
        else:
            return [_check_text(*pair) for pair in zip(keys, values, strict=True)]
    return texts


def _check_text(key: Any, value: Any) -> str:
    """Check that a value is a str, and return it. Raises UnprintableAnswer for another type."""
    if isinstance(value, str):
        return str(value)  # converts np.str_
    raise UnprintableAnswer(
        f"@DAGExecutor fetch var type must be str({type(value)}). An answer holds either str values "
        f"alone, or ndarray and list-of-str values alone; have postprocess make str(...) of {key!r}, say."
    )


def _check_key(key: Any) -> str:
    """Check that a key is a str, and return it.

    Raises UnprintableAnswer with err_no 8000 for another type.
    """
    if isinstance(key, str):
        return str(key)
    raise _bad_message(
        f"{key!r} has type {type(key).__name__}, but expected one of: bytes, unicode; "
        "the keys of an answer are str"
    )


def unencodable(error: UnicodeEncodeError) -> UnprintableAnswer:
    """Return the error (err_no 8000) for a response text that UTF-8 can't encode, with a lone surrogate."""
    return _bad_message(f"{error}; decode the text with errors='replace'")


def _bad_message(reason: str) -> UnprintableAnswer:
    """Return the error, with Paddle Serving's err_no 8000, for a response that can't be built."""
    error = UnprintableAnswer(f"rpc package error: {reason}")
    error.err_no = 8000  # Paddle Serving's number for a message that it can't build
    return error
