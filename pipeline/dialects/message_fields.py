"""The fields of a serialized message, without the message: their number, large ones, the length of one."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.config.config_file import Limits
from pipeline.errors import TooLarge

SMALL_BYTES = 16 * 1024  # what so few bytes become is small, whatever they say
_FIXED = {1: 8, 5: 4}  # wire types of a fixed size
_VARINT, _DELIMITED, _START_GROUP, _END_GROUP = 0, 2, 3, 4


class _NoMessage(Exception):
    """The bytes end too early, or have a wire type that there is not."""


def check_field_count(data: bytes, limits: Limits) -> None:
    """Raise TooLarge for more fields than keys, values and tensors may make; the rest is the parser's.

    Two bytes may become a hundred.
    """
    try:
        for _ in _fields(data, limits) if len(data) > SMALL_BYTES else ():
            pass
    except _NoMessage:
        return


def split(data: bytes, number: int, limits: Limits) -> tuple[bytes, list[memoryview]]:
    """A message without its delimited fields of this number, and the bytes in those, as views of `data`.

    Small messages, and those for a parser to refuse, stay whole. Raises TooLarge as `check_field_count` does.
    """
    if len(data) <= SMALL_BYTES:
        return data, []
    wanted = number << 3 | _DELIMITED
    view = memoryview(data)
    kept, found, done = [], [], 0
    try:
        for tag, start, content, end in _fields(data, limits):
            if tag == wanted:
                kept.append(view[done:start])
                found.append(view[content:end])
                done = end
    except _NoMessage:
        return data, []
    return (b"".join([*kept, view[done:]]), found) if found else (data, [])


def varint(number: int) -> bytes:
    """A number as messages have it, the length of a field, say: seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _fields(data: bytes, limits: Limits) -> Iterator[tuple[int, int, int, int]]:
    """Of each field its tag, and where it, its content and the next one begin.

    Raises TooLarge and _NoMessage.
    """
    most = 4 * limits.tensors
    at = count = 0
    while at < len(data):
        start = at
        tag, at = _varint(data, at)
        kind = tag & 7
        content = at
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _DELIMITED:
            size, content = _varint(data, at)
            at = content + size
        elif kind in _FIXED:
            at += _FIXED[kind]
        elif kind not in (_START_GROUP, _END_GROUP):
            raise _NoMessage
        if at > len(data):
            raise _NoMessage
        count += 1
        if count > most:
            raise TooLarge(f"the message has more than {most} fields; limits.tensors is {limits.tensors}")
        yield tag, start, content, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where it ends. Raises _NoMessage."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            break
    raise _NoMessage
