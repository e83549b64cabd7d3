"""Where images come from: files, addresses, base64 and bytes, decoded to arrays of (height, width, 3)."""

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
    """The image in a file's bytes, uint8 in BGR. Raises ValueError when there is none."""
    cv2 = opencv()
    image: Image | None = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) if data else None
    if image is None:
        raise ValueError(f"{what} is no image that OpenCV reads, like JPEG or PNG")
    return image


class ImageSource:
    """The base of image sources, which have no options to print."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class String2Image(ImageSource):
    """The bytes of a file to the image in BGR."""

    def __call__(self, data: bytes) -> Image:
        return decoded(data, "the text")


class File2Image(ImageSource):
    """A path to the image in BGR."""

    def __call__(self, path: str | Path) -> Image:
        return decoded(Path(path).read_bytes(), str(path))


class Base64ToImage(ImageSource):
    """Base64 of a file to the image in BGR."""

    def __call__(self, text: str | bytes) -> Image:
        return decoded(base64.b64decode(text), "the text")


class URL2Image(ImageSource):
    """An http or https address to the image in BGR; at most 64 MiB, in ten seconds.

    Raises ValueError for another kind of address, for more bytes and for no image, OSError where nothing
    answers in time.
    """

    def __call__(self, url: str) -> Image:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url[:80]!r} is no http or https address")
        return decoded(_downloaded(url), url[:80])


def _downloaded(url: str) -> bytes:
    """The timeout of urlopen counts each read anew, so a deadline bounds them all."""
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
