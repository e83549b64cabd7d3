"""Calls of gRPC as the bytes of a connection: preface, frames, headers without compression."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def header(name: bytes, value: bytes) -> bytes:
    """Of HPACK: a literal that enters no table."""
    return b"\0" + _length(name) + name + _length(value) + value


def _length(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes([len(text)])
    rest, coded = len(text) - 127, b"\x7f"
    while rest >= 128:
        coded += bytes([rest & 0x7F | 0x80])
        rest >>= 7
    return coded + bytes([rest])


def headers(path: bytes, *more: tuple[bytes, bytes]) -> bytes:
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"test")]
    fields += [(b"te", b"trailers"), (b"content-type", b"application/grpc"), *more]
    return b"".join(header(*field) for field in fields)


def message(data: bytes, compressed: bool = False) -> bytes:
    return struct.pack(">BI", compressed, len(data)) + data


def call(
    path: bytes, data: bytes, *more: tuple[bytes, bytes], stream: int = 1, compressed: bool = False
) -> bytes:
    """The frames of one unary call."""
    head = frame(HEADERS, headers(path, *more), END_HEADERS, stream)
    return head + frame(DATA, message(data, compressed), END_STREAM, stream)


def opening() -> bytes:
    return PREFACE + frame(SETTINGS)


WORDS = [
    PREFACE, frame(SETTINGS), frame(SETTINGS, flags=1), frame(SETTINGS, b"\0\4\xff\xff\xff\xff"),
    frame(SETTINGS, b"\0\1\0\0\0\0"),
    frame(PING, b"12345678"), frame(PING, b"1"), frame(GOAWAY, bytes(8)),
    frame(RST_STREAM, bytes(4), stream=1),
    frame(WINDOW_UPDATE, bytes(4)), frame(WINDOW_UPDATE, b"\x7f\xff\xff\xff"),
    frame(PRIORITY, bytes(5), stream=1),
    frame(PUSH_PROMISE, bytes(4), stream=1), frame(CONTINUATION, header(b"a", b"b"), 0, 1),
    frame(CONTINUATION, b"", END_HEADERS, 1),
    frame(DATA, b"", END_STREAM, 1), frame(DATA, b"", 0, 0), frame(DATA, b"\xff" * 9, 8, 1), frame(99, b"??"),
    header(b"grpc-timeout", b"1n"), header(b"grpc-timeout", b"x"), header(b"grpc-encoding", b"gzip"),
    header(b"a" * 200, b"b" * 9000),
    b"\x80", b"\xff\xff\xff\xff\x7f", b"\x3f\xe1\xff\xff\xff\x0f", b"\x82\x86\x84", b"\x41\x8a", b"\x01",
    b"\xff\xff\xff",
]  # fmt: skip
