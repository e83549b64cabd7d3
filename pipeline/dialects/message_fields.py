"""Limits the fields of serialized protobuf messages, and cuts out long fields, before protobuf parses.

A field of two bytes may take a hundred bytes in memory once parsed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from pipeline.config.config_file import Limits
from pipeline.errors import TooLarge

SMALL_BYTES = 16 * 1024  # messages up to this size are always small in memory
SHORT_BYTES = 256  # fields up to this size stay in a large message
FIELDS_PER_TENSOR = 4
_FIXED = {1: 8, 5: 4}  # size by wire type
_VARINT, _DELIMITED, _START_GROUP, _END_GROUP = 0, 2, 3, 4


class _InvalidMessage(Exception):
    """Raised if the bytes of a message end too early, or a field has an unknown wire type.

    The functions of this module catch the exception, because protobuf's parser will reject the message.
    """


def check_field_count(data: bytes, limits: Limits) -> None:
    """Raise TooLarge (a client error) if a serialized message has more fields than limits.tensors allows.

    Invalid messages pass, because protobuf's parser will reject them.
    """
    try:
        for _ in _fields(data, limits) if len(data) > SMALL_BYTES else ():
            pass
    except _InvalidMessage:
        return


def cut_fields(data: bytes, number: int, limits: Limits) -> tuple[bytes, list[memoryview]]:
    """Cut all length-delimited fields with a field number out of a serialized message.

    Returns the remaining message, and the contents of the fields as views of `data`. Small and invalid
    messages are returned unchanged, with no contents. Raises TooLarge like `check_field_count`.
    """
    if len(data) <= SMALL_BYTES:
        return data, []
    tag_to_cut = number << 3 | _DELIMITED
    view = memoryview(data)
    rest, contents, done = [], [], 0
    try:
        for tag, start, content, end in _fields(data, limits):
            if tag == tag_to_cut:
                rest.append(view[done:start])
                contents.append(view[content:end])
                done = end
    except _InvalidMessage:
        return data, []
    return (b"".join([*rest, view[done:]]), contents) if contents else (data, [])


class LargeMessage(NamedTuple):
    """A nested protobuf message whose long fields `check_nested` has cut out of the outer message."""

    data: memoryview  # the complete message
    cut: list[tuple[int, memoryview]]  # number and content of each cut field


def check_nested(
    data: bytes, number: int, limits: Limits, cut: Collection[int] = (), short: int = 0, elements: int = 0
) -> tuple[bytes, dict[int, LargeMessage]]:
    """Limit the number of fields in the nested messages with a field number, and cut out their long fields.

    cut: field numbers of the delimited fields to cut. short: number of a field that is never long, such as a
    shape; 0: none. elements: number of additional fields allowed, each an element of a tensor. Returns the
    outer message without the cut fields, and by index the nested messages that had cut fields. Raises
    TooLarge.
    """
    if len(data) <= SMALL_BYTES:
        return data, {}
    message_tag, cut_tags = number << 3 | _DELIMITED, {field << 3 | _DELIMITED for field in cut}
    view = memoryview(data)
    parts: list[bytes | memoryview] = []
    large: dict[int, LargeMessage] = {}
    done = index = 0
    budget = _Budget(limits, elements)
    try:
        for tag, start, content, end in _fields(data, limits, budget=budget):
            if tag != message_tag:
                continue
            rest, at, fields = [], content, []
            for inner_tag, inner_start, inner_content, inner_end in _fields(
                data, limits, content, end, budget
            ):
                size = inner_end - inner_content
                if short and inner_tag == short << 3 | _DELIMITED and size > SMALL_BYTES:
                    raise TooLarge(
                        f"a tensor has more than {limits.tensor_rank} dimensions; limits.tensor_rank"
                    )
                if inner_tag in cut_tags and size > SHORT_BYTES:
                    fields.append((inner_tag >> 3, view[inner_content:inner_end]))
                    rest.append(view[at:inner_start])
                    at = inner_end
            if fields:
                large[index] = LargeMessage(view[content:end], fields)
                outline = b"".join([*rest, view[at:end]])
                parts += [view[done:start], encode_varint(tag), encode_varint(len(outline)), outline]
                done = end
            index += 1
    except _InvalidMessage:
        return data, {}
    return (b"".join([*parts, view[done:]]), large) if large else (data, {})


def encode_varint(number: int) -> bytes:
    """Encode an integer as a protobuf varint: seven bits in each byte, the lowest first."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


class _Budget:
    """Counts the fields of a protobuf message, including its nested messages, up to a maximum."""

    def __init__(self, limits: Limits, elements: int = 0) -> None:
        self._max_tensors = limits.tensors
        self._remaining = self._max_fields = FIELDS_PER_TENSOR * limits.tensors + elements

    def spend(self) -> None:
        """Count a field. Raises TooLarge if the message has more fields than allowed."""
        self._remaining -= 1
        if self._remaining < 0:
            raise TooLarge(
                f"the message has more than {self._max_fields} fields; limits.tensors is {self._max_tensors}"
            )


def _fields(
    data: bytes, limits: Limits, at: int = 0, stop: int | None = None, budget: _Budget | None = None
) -> Iterator[tuple[int, int, int, int]]:
    """Yield for each field of a serialized message its tag, and the offsets of its start, content and end.

    at, stop: start and end of the message in `data`. Raises TooLarge and _InvalidMessage.
    """
    budget = budget or _Budget(limits)
    stop = len(data) if stop is None else stop
    while at < stop:
        start = at
        tag, at = _decode_varint(data, at)
        kind = tag & 7
        content = at
        if kind == _VARINT:
            _, at = _decode_varint(data, at)
        elif kind == _DELIMITED:
            size, content = _decode_varint(data, at)
            at = content + size
        elif kind in _FIXED:
            at += _FIXED[kind]
        elif kind not in (_START_GROUP, _END_GROUP):
            raise _InvalidMessage
        if at > stop:
            raise _InvalidMessage
        budget.spend()
        yield tag, start, content, at


def _decode_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode the protobuf varint at offset `at`. Return its value and the offset of its end.

    Raises _InvalidMessage.
    """
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
    raise _InvalidMessage
