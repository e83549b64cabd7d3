"""Headlines of usual length, and the requests that carry them."""

from __future__ import annotations

import struct

import msgspec

from client.protos.pipeline_service_pb2 import Request
from convert.demo.headlines import read_headlines

CHARACTERS = range(25, 36)


def headlines() -> list[str]:
    """The demo's headlines of about 30 characters, in file order; short ones are joined by twos."""
    texts = [headline.text for headline in read_headlines()]
    own = [text for text in texts if len(text) in CHARACTERS]
    pairs = (f"{a}，{b}" for a, b in zip(texts[::2], texts[1::2], strict=False))
    return own + [text for text in pairs if len(text) in CHARACTERS]


def http_body(text: str) -> bytes:
    return msgspec.json.encode({"key": ["0"], "value": [text]})


def grpc_body(text: str) -> bytes:
    """A message as gRPC frames it: not compressed, length, protobuf."""
    return framed(Request(name="bert", method="prediction", key=["0"], value=[text]).SerializeToString())


def framed(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message
