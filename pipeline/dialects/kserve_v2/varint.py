"""Lengths as protobuf writes them, for what is put around serialized messages without parsing them."""

from __future__ import annotations


def varint(number: int) -> bytes:
    """The number in seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
