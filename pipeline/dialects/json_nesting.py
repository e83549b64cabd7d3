"""What a body is before it is decoded: JSON at all, how deep it nests, how many objects it has. Bounds for
every dialect."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.errors import TooLarge

_KINDS = {  # by their first bytes
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG": "a PNG image",
    b"GIF8": "a GIF image",
    b"RIFF": "a RIFF file, a WebP image say",
    b"BM": "a BMP image",
    b"%PDF": "a PDF",
    b"PK\x03\x04": "a ZIP archive",
    b"\x1f\x8b": "compressed by gzip",
    b"\x93NUMPY": "a .npy file",
}
_NEITHER_BRACKET_NOR_QUOTE = bytes(set(range(256)) - set(b'[]{}"'))


def other_kind(body: bytes) -> str:
    """What a body is that can be told to be no JSON: an image, say; empty for any other."""
    return next((kind for start, kind in _KINDS.items() if body.startswith(start)), "")


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
    """Of each byte of a JSON text: whether it is outside of strings, and how many brackets are open there."""
    plain = np.frombuffer(text.replace(b"\\\\", b"  ").replace(b'\\"', b"  "), np.uint8)
    outside = np.bitwise_xor.accumulate((plain == ord('"')).view(np.uint8)) == 0
    opened = outside & ((plain == ord("[")) | (plain == ord("{")))
    closed = outside & ((plain == ord("]")) | (plain == ord("}")))
    return outside, np.cumsum(opened.view(np.int8) - closed.view(np.int8), dtype=np.int32)
