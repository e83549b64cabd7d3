"""Reads the arrays that the service prints: NumPy reprs become lists, without eval."""

from __future__ import annotations

import ast
import math
from typing import TypeAlias

Scalar = str | bytes | bool | int | float | complex | None
Value: TypeAlias = "Scalar | list[Value]"

NAMES = {"nan": math.nan, "inf": math.inf}


class _NotAnArray(Exception):
    pass


def parse_value(text: str) -> Value:
    """`array([[1, 2]], dtype=int32)` becomes `[[1, 2]]`; what is not an array's repr comes back as it is.

    An array of no axes becomes its only element. A repr that NumPy shortened with `...` stays text.
    """
    if not text.startswith("array("):
        return text
    try:
        tree = ast.parse(text, mode="eval").body
        # The dtype and shape that follow are keywords of the call, and not needed.
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and len(tree.args) == 1:
            return _value(tree.args[0])
    except (SyntaxError, ValueError, RecursionError, MemoryError, _NotAnArray):
        pass
    return text


def _value(node: ast.expr) -> Value:
    match node:
        case ast.List(elts) | ast.Tuple(elts):
            return [_value(element) for element in elts]
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
    value = _value(node)
    if isinstance(value, int | float | complex):
        return value
    raise _NotAnArray
