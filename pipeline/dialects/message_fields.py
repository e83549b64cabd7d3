"""The fields of a serialized message, without the message: their number, large ones, the length of one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from pipeline.config.config_file import Limits
from pipeline.errors import TooLarge

SMALL_BYTES = 16 * 1024  # what so few bytes become is small, whatever they say
SHORT_BYTES = 256  # of a field that stays in a large message: it has as many of them as fields
FIELDS_PER_TENSOR = 4
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
    tag_to_cut = number << 3 | _DELIMITED
    view = memoryview(data)
    rest, contents, done = [], [], 0
    try:
        for tag, start, content, end in _fields(data, limits):
            if tag == tag_to_cut:
                rest.append(view[done:start])
                contents.append(view[content:end])
                done = end
    except _NoMessage:
        return data, []
    return (b"".join([*rest, view[done:]]), contents) if contents else (data, [])


class LargeMessage(NamedTuple):
    """A nested message with fields that were cut out of its outline."""

    data: memoryview  # all of it
    cut: list[tuple[int, memoryview]]  # number and content of each field that was cut


def check_nested(
    data: bytes, number: int, limits: Limits, cut: Collection[int] = (), short: int = 0, elements: int = 0
) -> tuple[bytes, dict[int, LargeMessage]]:
    """Count the fields of the nested messages with this number, and cut long fields out of them.

    cut: numbers of the delimited fields to cut where they are long. short: the number of a field that is
    never long, a shape. elements: more fields that there may be, each an element of a tensor. Returns the
    message without what was cut, and the nested messages that lack fields, by their place among those with
    the number. Raises TooLarge.
    """
    if len(data) <= SMALL_BYTES:
        return data, {}
    message_tag, cut_tags = number << 3 | _DELIMITED, {field << 3 | _DELIMITED for field in cut}
    view = memoryview(data)
    parts: list[bytes | memoryview] = []
    large: dict[int, LargeMessage] = {}
    done = place = 0
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
                large[place] = LargeMessage(view[content:end], fields)
                outline = b"".join([*rest, view[at:end]])
                parts += [view[done:start], varint(tag), varint(len(outline)), outline]
                done = end
            place += 1
    except _NoMessage:
        return data, {}
    return (b"".join([*parts, view[done:]]), large) if large else (data, {})


def varint(number: int) -> bytes:
    """A number as messages have it, the length of a field, say: seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


class _Budget:
    """How many more fields a message may have, with those of the messages in it."""

    def __init__(self, limits: Limits, elements: int = 0) -> None:
        self._limits = limits
        self._left = self._most = FIELDS_PER_TENSOR * limits.tensors + elements

    def spend(self) -> None:
        """Count a field. Raises TooLarge."""
        self._left -= 1
        if self._left < 0:
            raise TooLarge(
                f"the message has more than {self._most} fields; limits.tensors is {self._limits.tensors}"
            )


def _fields(
    data: bytes, limits: Limits, at: int = 0, stop: int | None = None, budget: _Budget | None = None
) -> Iterator[tuple[int, int, int, int]]:
    """Yield for each field its tag, and where the field, its content and the next field begin.

    at, stop: where the message is in `data`. Raises TooLarge and _NoMessage.
    """
    budget = budget or _Budget(limits)
    stop = len(data) if stop is None else stop
    while at < stop:
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
        if at > stop:
            raise _NoMessage
        budget.spend()
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
