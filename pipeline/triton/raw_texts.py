"""Texts as Triton writes them to files and memory: each after its length, in four bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable

_LENGTH = struct.Struct("<I")


def written(texts: Iterable[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(text)) + text for text in texts)


def read(data: bytes) -> list[bytes]:
    """Raises ValueError for what ends within a text or its length."""
    texts: list[bytes] = []
    at = 0
    while at + _LENGTH.size <= len(data):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(data, at)[0]
        texts.append(data[start:at])
    if at != len(data):
        raise ValueError(f"{len(data)} bytes do not hold texts, each after its length")
    return texts
