"""Compatibility with NumPy 1 for older user code: names that NumPy 2 removed, such as `np.float`.

The first use of a removed name is logged. `hasattr(np, "float")` is true as well: code that tests it mostly
sets the name if it is missing. `np.__version__` is unchanged.
"""

from __future__ import annotations

import logging
import sys
from types import FrameType
from typing import Any

import numpy as np

from pipeline.process.environment import flaw_of_numpy

log = logging.getLogger(__name__)


def _asfarray(a: Any, dtype: Any = np.float64) -> Any:
    return np.asarray(a, dtype if np.issubdtype(dtype, np.inexact) else np.float64)


def _msort(a: Any) -> Any:
    return np.sort(a, axis=0)


def _in1d(ar1: Any, ar2: Any, assume_unique: bool = False, invert: bool = False, **options: Any) -> Any:
    return np.isin(np.ravel(ar1), ar2, assume_unique, invert, **options)


def _trapz(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    return np.trapezoid(y, x, dx, axis)


def _find_common_type(array_types: Any, scalar_types: Any) -> Any:
    return np.result_type(*array_types, *scalar_types)


NAMES: dict[str, Any] = {
    "int": int,
    "float": float,
    "complex": complex,
    "object": object,
    "str": str,
    "unicode": str,
    "int0": np.intp,
    "uint0": np.uintp,
    "float_": np.float64,
    "complex_": np.complex128,
    "singlecomplex": np.complex64,
    "cfloat": np.complex128,
    "string_": np.bytes_,
    "unicode_": np.str_,
    "object0": np.object_,
    "NaN": np.nan,
    "NAN": np.nan,
    "Inf": np.inf,
    "Infinity": np.inf,
    "infty": np.inf,
    "PINF": np.inf,
    "NINF": -np.inf,
    "PZERO": 0.0,
    "NZERO": -0.0,
    "product": np.prod,
    "cumproduct": np.cumprod,
    "alltrue": np.all,
    "sometrue": np.any,
    "round_": np.round,
    "mat": np.asmatrix,
    "bool8": np.bool_,
    "longfloat": np.longdouble,
    "clongfloat": np.clongdouble,
    "longcomplex": np.clongdouble,
    "asfarray": _asfarray,
    "msort": _msort,
    "in1d": _in1d,
    "trapz": _trapz,
    "find_common_type": _find_common_type,
}

_numpy_getattr: Any = None
_numpy_fromstring: Any = None
_warned = False


def print_as_numpy_1() -> None:
    """Make `str` and `repr` format NumPy scalars and arrays as NumPy 1 does, in the calling thread.

    User code written for Paddle Serving relies on that format: in NumPy 1, `str([np.float32(0.5)])` is
    `[0.5]`.
    """
    np.set_printoptions(legacy="1.25")


def install_numpy_1_names() -> None:
    """Add the names that NumPy 2 removed (`np.float`, `np.in1d`, ...) to the numpy module of this process.

    Does nothing when repeated, and with NumPy 1.
    """
    global _numpy_getattr, _numpy_fromstring
    if _numpy_getattr is not None or flaw_of_numpy(np.__version__):
        return
    _numpy_getattr, _numpy_fromstring = np.__getattr__, np.fromstring
    vars(np).update(__getattr__=_former_name, fromstring=_fromstring)


def _former_name(name: str) -> Any:
    if name not in NAMES:
        return _numpy_getattr(name)
    _warn_once(f"numpy.{name}", sys._getframe(1))
    return NAMES[name]


def _fromstring(string: Any, dtype: Any = float, count: int = -1, *, sep: str = "", **options: Any) -> Any:
    """Implement `np.fromstring`, including binary input, which newer NumPy rejects. Returns a copy."""
    if sep:
        return _numpy_fromstring(string, dtype, count, sep=sep, **options)
    _warn_once("numpy.fromstring of bytes", sys._getframe(1))
    data = string.encode() if isinstance(string, str) else string
    return np.frombuffer(data, dtype, count).copy()


def _warn_once(name: str, user: FrameType) -> None:
    global _warned
    if not _warned:
        _warned = True
        log.warning(
            "%s:%d uses %s of NumPy 1; such names still work here, but not in NumPy 2",
            user.f_code.co_filename,
            user.f_lineno,
            name,
        )
