"""How many fields a serialized message has, before it is parsed: two bytes may become a hundred."""

from __future__ import annotations

from pipeline.config import Limits
from pipeline.errors import TooLarge

SMALL_BYTES = 16 * 1024  # what so few bytes become is small, whatever they say
_FIXED = {1: 8, 5: 4}  # wire types of a fixed size
_VARINT, _DELIMITED, _START_GROUP, _END_GROUP = 0, 2, 3, 4


def check_field_count(data: bytes, limits: Limits) -> None:
    """Raise TooLarge for more fields than keys, values and tensors may make; the rest is the parser's."""
    if len(data) <= SMALL_BYTES:
        return
    most = 4 * limits.tensors
    at = count = 0
    try:
        while at < len(data):
            tag, at = _varint(data, at)
            kind = tag & 7
            if kind == _VARINT:
                _, at = _varint(data, at)
            elif kind == _DELIMITED:
                size, at = _varint(data, at)
                at += size
            elif kind in _FIXED:
                at += _FIXED[kind]
            elif kind not in (_START_GROUP, _END_GROUP):
                return
            count += 1
            if count > most:
                raise TooLarge(f"the message has more than {most} fields; limits.tensors is {limits.tensors}")
    except IndexError:  # it ends too early
        return


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where it ends. Raises IndexError."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError
