"""Parser of multipart forms (RFC 7578), with which clients upload files and text fields."""

from __future__ import annotations

from email.message import Message
from typing import NamedTuple

from pipeline.errors import MalformedBody

FORM = "multipart/form-data"
MAX_PARTS = 16
MAX_HEAD_BYTES = 4096  # headers of a part
_MAX_BOUNDARY_CHARS = 70
_MAX_TYPE_CHARS = 300


class FormPart(NamedTuple):
    """One part of a multipart form: a file or a text field."""

    name: str
    content: bytes
    is_file: bool
    media: str  # media type in lower case; empty if absent


def parse_form(content_type: str, body: bytes) -> list[FormPart]:
    """Return the parts of a multipart form. content_type: value of the Content-Type header.

    Raises MalformedBody for an invalid form, and for more than MAX_PARTS parts.
    """
    boundary = _parse_header("content-type", content_type[:_MAX_TYPE_CHARS]).get_param("boundary", "")
    if not isinstance(boundary, str) or not 0 < len(boundary) <= _MAX_BOUNDARY_CHARS:
        raise MalformedBody(f"content-type {content_type[:100]!r} has no boundary of a form")
    delimiter = b"--" + boundary.encode("latin-1", "replace")
    if not body.startswith(delimiter):
        raise MalformedBody(f"the form does not begin with its boundary {boundary!r}")
    # The first delimiter has no line end before it. A form ends with `--` behind its last delimiter.
    first, *others = body[len(delimiter) :].split(b"\r\n" + delimiter, MAX_PARTS)
    *chunks, end = (first, *others)
    if not end.startswith(b"--"):
        raise MalformedBody(f"the form has no end, or over {MAX_PARTS} parts")
    return [_parse_part(number, chunk) for number, chunk in enumerate(chunks, 1)]


def _parse_part(number: int, chunk: bytes) -> FormPart:
    """Parse the headers and the content of one part of a form. Raises MalformedBody.

    number: position of the part, from 1, for the error message.
    """
    end = chunk.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    if not chunk.startswith(b"\r\n") or end < 0:
        raise MalformedBody(
            f"part {number} of the form has no headers, or over {MAX_HEAD_BYTES} bytes of them"
        )
    headers: dict[str, str] = {}
    for line in chunk[2:end].decode("utf-8", "replace").split("\r\n"):
        key, _, value = line.partition(":")
        headers[key.strip().lower()] = value.strip()
    disposition = _parse_header("content-disposition", headers.get("content-disposition", ""))
    name = disposition.get_param("name", "", "content-disposition")
    if not isinstance(name, str) or not name:
        raise MalformedBody(f"part {number} of the form has no name")
    is_file = disposition.get_param("filename", None, "content-disposition") is not None
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    return FormPart(name, chunk[end + 4 :], is_file, media)


def _parse_header(name: str, value: str) -> Message:
    """Return an email message that has this header; its `get_param` finds the header's parameters."""
    message = Message()
    message[name] = value.replace("\r", " ").replace("\n", " ")
    return message
