"""Reads and writes files in protobuf's text format: config.pbtxt, prototxt, shape ranges."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TypeVar

from google.protobuf import text_format
from google.protobuf.message import Message

from pipeline.errors import ConfigError

MAX_ERROR_CHARS = 300  # protobuf quotes the whole line

M = TypeVar("M", bound=Message)


def read_message(path: Path, message: type[M], max_bytes: int) -> M:
    """Parse a UTF-8 file in protobuf's text format into a message of the class `message`.

    Raises FileNotFoundError, and ConfigError, with the file and the line, for an invalid file or over
    `max_bytes`.
    """
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise ConfigError(f"{path} can't be read: {exc.strerror}") from exc
    if len(content) > max_bytes:
        raise ConfigError(f"{path} is over {max_bytes} bytes; such a file has some KB")
    try:
        text = content.decode("utf-8-sig")  # Windows editors write a byte order mark
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        raise ConfigError(
            f"{path}, line {line}: byte 0x{content[exc.start]:02x} is no UTF-8; save the file as UTF-8"
        ) from None
    return parse_message(text, message, str(path))


def parse_message(text: str, message: type[M], source: str) -> M:
    """Parse a text in protobuf's text format into a message of the class `message`.

    Raises ConfigError that names `source`, the line and the field.
    """
    parsed = message()
    try:
        text_format.Parse(text, parsed)
    except text_format.ParseError as exc:
        raise ConfigError(f"{source}, line {exc.GetLine()}: {_describe_error(exc, message)}") from None
    except RecursionError:
        raise ConfigError(f"{source}: messages are nested too deeply") from None
    return parsed


def format_message(message: Message) -> str:
    """Return a message in protobuf's text format, with unescaped UTF-8 text."""
    text: str = text_format.MessageToString(message, as_utf8=True)
    return text


def _describe_error(exc: text_format.ParseError, message: type[Message]) -> str:
    """Return protobuf's error message without the position, with the closest field name as a hint."""
    _, _, words = str(exc).partition(" : ")
    file = message.DESCRIPTOR.file
    words = words.replace(f'Message type "{file.package}.', 'message "')
    kind, _, field = words.partition(" has no field named ")
    if field:
        name, parent = field.strip('".'), kind.rpartition('"')[0].rpartition('"')[2]
        names = file.pool.FindMessageTypeByName(f"{file.package}.{parent}").fields_by_name
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"unknown field {name!r} in {parent}{hint}"
    return words if len(words) <= MAX_ERROR_CHARS else f"...{words[-MAX_ERROR_CHARS:]}"
