"""Loaders of images from files, URLs, base64 and bytes; they return BGR arrays (height, width, 3)."""

from __future__ import annotations

import base64
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddle_serving_app.reader.vision_extra import opencv

Image = NDArray[Any]

_URL_SECONDS = 10.0
_URL_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 1 << 16


def decoded(data: bytes, what: str) -> Image:
    """Decode the bytes of an image file to a uint8 array in BGR. Raise ValueError for other bytes.

    what: name of the bytes, for the message.
    """
    cv2 = opencv()
    image: Image | None = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) if data else None
    if image is None:
        raise ValueError(f"{what} is no image that OpenCV reads, like JPEG or PNG")
    return image


class ImageSource:
    """Base of the image loaders; implements their repr."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class String2Image(ImageSource):
    """Decodes the bytes of an image file to a BGR array."""

    def __call__(self, data: bytes) -> Image:
        return decoded(data, "the text")


class File2Image(ImageSource):
    """Reads an image file to a BGR array."""

    def __call__(self, path: str | Path) -> Image:
        return decoded(Path(path).read_bytes(), str(path))


class Base64ToImage(ImageSource):
    """Decodes the base64 text of an image file to a BGR array."""

    def __call__(self, text: str | bytes) -> Image:
        return decoded(base64.b64decode(text), "the text")


class URL2Image(ImageSource):
    """Downloads an image from an http or https URL to a BGR array: at most 64 MiB, within ten seconds.

    Raises ValueError for another scheme, a larger file or a file that is no image. Raises OSError if the
    server does not answer in time.
    """

    def __call__(self, url: str) -> Image:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url[:80]!r} is no http or https address")
        return decoded(_downloaded(url), url[:80])


def _downloaded(url: str) -> bytes:
    """Return the content at a URL, with one deadline for all reads together.

    The timeout of urlopen limits each read separately.
    """
    deadline = time.monotonic() + _URL_SECONDS
    data = bytearray()
    with urllib.request.urlopen(url, timeout=_URL_SECONDS) as response:
        while chunk := response.read1(_CHUNK_BYTES):
            data += chunk
            if len(data) > _URL_BYTES:
                raise ValueError(f"{url[:80]!r} has more than {_URL_BYTES} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url[:80]!r} took more than {_URL_SECONDS:.0f} s")
    return bytes(data)
