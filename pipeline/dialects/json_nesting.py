"""How deep a JSON body nests and how many objects it has, before it is decoded: bounds for every dialect."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.errors import TooLarge

_NEITHER_BRACKET_NOR_QUOTE = bytes(set(range(256)) - set(b'[]{}"'))


def check_depth(body: bytes, limit: int) -> None:
    """Raise TooLarge when the body nests deeper than `limit`: for one with more brackets than that.

    It costs some 10 ns a byte with escapes in it, and every level of nesting has a bracket. A body that does
    not begin with one is no JSON that nests: its decoder says what it is.
    """
    if not body.lstrip(b" \t\r\n").startswith((b"[", b"{")):
        return
    if b"\\" not in body:
        body = body.translate(None, _NEITHER_BRACKET_NOR_QUOTE)
    _, depth = nesting(body)
    if depth.size and depth.max() > limit:
        raise TooLarge(f"the body nests {depth.max()} levels deep; limits.json_depth is {limit}")


def check_objects(body: bytes, limit: int) -> None:
    """Raise TooLarge for more objects than `limit`: a short one in the body is a large one in memory."""
    if body.count(b"{") <= limit:
        return
    outside, _ = nesting(body)
    count = int((outside & (np.frombuffer(body, np.uint8) == ord("{"))).sum())
    if count > limit:
        raise TooLarge(f"the body has {count} objects; limits.tensors is {limit - 1}")


def nesting(text: bytes) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int32]]:
    """Return for each byte of a JSON text whether it is outside of strings, and its nesting depth."""
    plain = np.frombuffer(text.replace(b"\\\\", b"  ").replace(b'\\"', b"  "), np.uint8)
    outside = np.bitwise_xor.accumulate((plain == ord('"')).view(np.uint8)) == 0
    opened = outside & ((plain == ord("[")) | (plain == ord("{")))
    closed = outside & ((plain == ord("]")) | (plain == ord("}")))
    return outside, np.cumsum(opened.view(np.int8) - closed.view(np.int8), dtype=np.int32)
