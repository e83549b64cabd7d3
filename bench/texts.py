"""Headlines of usual length, texts of very different lengths, and request bodies with them."""

from __future__ import annotations

import struct

import msgspec
import numpy as np

from client.protos.pipeline_service_pb2 import Request
from convert.demo.headlines import read_headlines

CHARACTERS = range(25, 36)
SHORTEST, LONGEST = 5, 400  # characters of mixed texts
_MIXED = 512


def headlines() -> list[str]:
    """Return the demo's headlines of about 30 characters, in file order. Short ones are joined in pairs."""
    texts = [headline.text for headline in read_headlines()]
    singles = [text for text in texts if len(text) in CHARACTERS]
    pairs = (f"{a}，{b}" for a, b in zip(texts[::2], texts[1::2], strict=False))
    return singles + [text for text in pairs if len(text) in CHARACTERS]


def mixed_lengths() -> list[str]:
    """Return texts of 5 to 400 characters with a long tail.

    They have 57 tokens on average, 33 at the median, and a tenth has over 112. They are headlines, joined and
    cut, always the same.
    """
    texts = [headline.text for headline in read_headlines()]
    random = np.random.default_rng(1)
    lengths = np.exp(random.normal(3.45, 1.25, _MIXED)).clip(SHORTEST, LONGEST).astype(int)
    starts = random.integers(len(texts), size=_MIXED)
    return [_joined(texts, start, length) for start, length in zip(starts, lengths, strict=True)]


def _joined(texts: list[str], start: int, length: int) -> str:
    """Return `length` characters of the texts from `start` on."""
    joined = ""
    while len(joined) < length:
        joined += ("，" if joined else "") + texts[start % len(texts)]
        start += 1
    return joined[:length]


def http_body(text: str) -> bytes:
    return msgspec.json.encode({"key": ["0"], "value": [text]})


def grpc_body(text: str) -> bytes:
    """Return a protobuf message as gRPC frames it: compression flag, length, message."""
    return framed(Request(name="bert", method="prediction", key=["0"], value=[text]).SerializeToString())


def framed(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message
