"""gzip and deflate of HTTP bodies, the decompressed size bounded before it is allocated."""

from __future__ import annotations

import zlib

from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.errors import TooLarge
from pipeline.messages.values import Part

_WINDOWS = {"gzip": 31, "deflate": 15}  # of zlib: deflate is its own format, as in RFC 9110
_LEVEL = 1  # a front is short of time, not of bytes


def decompressed(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """The body without its encoding; "" is none.

    Raises KServeRefusal for an unknown encoding and for what is not in it, TooLarge over `most` bytes.
    """
    if encoding in ("", "identity"):
        return body
    window = _WINDOWS.get(encoding)
    if window is None:
        raise KServeRefusal("Unsupported compression type", "UNIMPLEMENTED")
    stream = zlib.decompressobj(window)
    try:
        data = stream.decompress(body, max_bytes + 1)
    except zlib.error as exc:
        raise KServeRefusal(f"failed to decompress the request body as {encoding}: {exc}") from None
    if len(data) > max_bytes:
        raise TooLarge(
            f"the body is over {max_bytes} bytes once decompressed; limits.body_bytes is {max_bytes}"
        )
    if not stream.eof:
        raise KServeRefusal(f"failed to decompress the request body as {encoding}: it ends too early")
    return data


def chosen(accepted: str) -> str:
    """The encoding that an Accept-Encoding header likes best of ours; "" for none."""
    best, best_quality = "", 0.0
    for option in accepted.lower().split(","):
        name, _, parameter = option.partition(";")
        name = name.strip()
        if name not in _WINDOWS:
            continue
        quality = _quality(parameter)
        if quality > best_quality:
            best, best_quality = name, quality
    return best


def _quality(parameter: str) -> float:
    key, _, value = parameter.strip().partition("=")
    if key.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def compressed(body: Part, encoding: str) -> bytes:
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOWS[encoding])
    return stream.compress(body) + stream.flush()
