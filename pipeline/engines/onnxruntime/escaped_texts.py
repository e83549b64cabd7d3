"""Bytes that are no UTF-8 in texts of ONNX Runtime, whose Python interface takes and returns `str` alone.

Each such byte travels as a character of Unicode's last private area.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

_BASE = 0x10FF00  # the character of byte 0; only bytes from 0x80 on occur
_ESCAPED = re.compile(f"[{chr(_BASE + 0x80)}-{chr(_BASE + 0xFF)}]")
_ESCAPES = {0xDC00 + byte: chr(_BASE + byte) for byte in range(0x80, 0x100)}  # Python's surrogates of bytes


def is_utf8(array: np.ndarray[Any, Any]) -> bool:
    """Return whether all bytes in an array of texts are UTF-8."""
    try:
        for element in array.ravel().tolist():
            if isinstance(element, bytes):
                element.decode()
    except UnicodeDecodeError:
        return False
    return True


def escape_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Convert an array of str and bytes to str, with an escape for each byte that is no UTF-8."""
    texts = [
        element.decode("utf-8", "surrogateescape").translate(_ESCAPES)
        if isinstance(element, bytes)
        else element
        for element in array.ravel().tolist()
    ]
    return np.array(texts, object).reshape(array.shape)


def unescape_bytes(fetched: Any) -> np.ndarray[Any, Any]:
    """Return an output of the model as an array, texts as bytes without the escapes of `escape_bytes`."""
    array = np.asarray(fetched)
    if array.dtype.kind not in "OU":
        return array
    texts = np.empty(array.size, object)
    texts[:] = [
        _ESCAPED.sub(lambda match: chr(ord(match[0]) - _BASE + 0xDC00), text).encode(
            "utf-8", "surrogateescape"
        )
        for text in array.ravel().tolist()
    ]
    return texts.reshape(array.shape)
