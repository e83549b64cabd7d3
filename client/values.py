"""A parser of arrays in NumPy's printed form, as key/value answers carry them; it does not use eval."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING, Any, TypeAlias

from client.errors import numpy_required

if TYPE_CHECKING:  # NumPy is imported when the first array is parsed
    from numpy.typing import NDArray

Scalar = str | bytes | bool | int | float | complex | None
Value: TypeAlias = "Scalar | list[Value]"

NAMES = {"nan": math.nan, "inf": math.inf}


class _NotAnArray(Exception):
    pass


def parse_value(text: str) -> Value:
    """Parse a printed array, such as "array([[1, 2]], dtype=int32)", to a list. Other texts are unchanged.

    An array without axes becomes its only element. A repr that NumPy abbreviated with `...` is kept as text.
    """
    call = _call(text)
    try:
        return text if call is None else _parse_value(call.args[0])
    except (ValueError, RecursionError, _NotAnArray):
        return text


def parse_array(text: str) -> NDArray[Any] | str:
    """Parse a printed array to a NumPy array with its dtype and shape. Other texts are unchanged."""
    value, call = parse_value(text), _call(text)
    if call is None or value is text:
        return text
    with numpy_required():
        import numpy as np

    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    try:
        array = np.array(value, None if "dtype" not in keywords else _dtype(keywords["dtype"]))
        shape = _parse_value(keywords["shape"]) if "shape" in keywords else None
        return array.reshape([int(str(side)) for side in shape]) if isinstance(shape, list) else array
    except (ValueError, TypeError, _NotAnArray):
        return text


def _call(text: str) -> ast.Call | None:
    """Return the syntax tree of a text of the form array(..., dtype=..., shape=...), else None."""
    if not text.startswith("array("):
        return None
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    is_array = isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and len(tree.args) == 1
    return tree if is_array and isinstance(tree, ast.Call) else None


def _dtype(node: ast.expr) -> str:
    """Return the dtype name of a syntax node, such as float32 or '<U6'. Raise _NotAnArray for object."""
    name = node.id if isinstance(node, ast.Name) else node.value if isinstance(node, ast.Constant) else None
    if not isinstance(name, str) or name == "object":
        raise _NotAnArray
    return name


def _parse_value(node: ast.expr) -> Value:
    match node:
        case ast.List(elts) | ast.Tuple(elts):
            return [_parse_value(element) for element in elts]
        case ast.Constant(value) if value is not Ellipsis:
            assert value is None or isinstance(value, str | bytes | bool | int | float | complex)
            return value
        case ast.Name(name) if name in NAMES:
            return NAMES[name]
        case ast.UnaryOp(ast.USub(), operand):
            return -_number(operand)
        case ast.BinOp(left, ast.Add(), right):  # 1.+2.j
            return _number(left) + _number(right)
        case ast.BinOp(left, ast.Sub(), right):
            return _number(left) - _number(right)
    raise _NotAnArray


def _number(node: ast.expr) -> int | float | complex:
    value = _parse_value(node)
    if isinstance(value, int | float | complex):
        return value
    raise _NotAnArray
