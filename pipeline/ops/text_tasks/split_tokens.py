"""Parses texts that clients send split into tokens: as JSON, or as Paddle Serving's clients print lists."""

from __future__ import annotations

import ast
import json
from typing import Any

import numpy as np

from pipeline.errors import InvalidInput

_MAX_TOKENS = 1 << 16  # of a text
_MAX_PRINTED = 1 << 18  # characters: a parsed one takes hundreds of bytes
_CALLS = ("array", "list")  # what the repr of an array looks like, of one of lists, too


def tokens_of_json(text: str, where: str, most_chars: int) -> list[str]:
    """Parse a JSON list of tokens. `where` names the text in errors. Raises InvalidInput."""
    try:
        tokens = json.loads(text)
    except (ValueError, RecursionError):
        tokens = None
    return checked_tokens(tokens, where, most_chars)


def checked_tokens(tokens: Any, where: str, most_chars: int) -> list[str]:
    """Return the token list of a text unchanged. `where` names the text in errors.

    Raises InvalidInput for another type, for too many tokens, or for a token over `most_chars`.
    """
    if not isinstance(tokens, list):
        raise InvalidInput(f'{where} is no list of tokens in JSON: send one like ["a", "b"]')
    if not tokens:
        raise InvalidInput(f"{where} has no tokens")
    if len(tokens) > _MAX_TOKENS:
        raise InvalidInput(f"{where} has {len(tokens)} tokens; {_MAX_TOKENS} are allowed")
    for at, token in enumerate(tokens):
        if not isinstance(token, str):
            raise InvalidInput(f"{where}: token {at} is no text but {type(token).__name__}")
        if len(token) > most_chars:
            raise InvalidInput(f"{where}: token {at} has {len(token)} characters; {most_chars} are allowed")
    return tokens


def printed_texts(value: Any, name: str) -> list[Any]:
    """Parse texts or token lists from a request value: a tensor, a list, JSON, or a printed NumPy array.

    `name` is the value's name in errors. Raises InvalidInput.
    """
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, str):
        return value if isinstance(value, list) else [value]
    if not value.lstrip().startswith(("[", "array(")):
        return [value]
    try:
        listed = json.loads(value)
    except (ValueError, RecursionError):
        return _of_repr(value.strip(), name)
    return list(listed)


def _of_repr(text: str, name: str) -> list[Any]:
    if len(text) > _MAX_PRINTED:
        raise InvalidInput(
            f"{name!r} has {len(text)} characters; {_MAX_PRINTED} are read as Python prints them: send JSON"
        )
    try:
        read = _parse_node(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InvalidInput(f"{name!r} is neither a text, nor a list of texts or of their tokens") from None
    return read if isinstance(read, list) else [read]


def _parse_node(node: ast.expr) -> Any:
    """Return the value of a parsed expression: a list, text or NumPy array.

    Raises ValueError for any other expression.
    """
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        if not node.args:
            raise ValueError
        return _parse_node(node.args[0])
    if isinstance(node, ast.List | ast.Tuple):
        return [_parse_node(element) for element in node.elts]
    if isinstance(node, ast.Constant):
        return node.value
    raise ValueError
