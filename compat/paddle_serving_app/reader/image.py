"""Transforms of images, arrays of (height, width, 3), that follow each other in a `Sequential`."""

from __future__ import annotations

import base64
import importlib
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Image = NDArray[Any]

_URL_TIMEOUT_S = 10.0
_URL_BYTES = 64 * 1024 * 1024


def opencv() -> Any:
    """The module cv2. Raises ImportError that names what to install."""
    try:
        return importlib.import_module("cv2")
    except ImportError as exc:
        raise ImportError(
            "this transform needs OpenCV; install what images need: python3 -m pip install './compat[vision]'"
        ) from exc


def decoded(data: bytes, what: str) -> Image:
    """The image in a file's bytes, in OpenCV's order of colours. Raises ValueError when there is none."""
    image: Image | None = opencv().imdecode(np.frombuffer(data, np.uint8), 1)
    if image is None:
        raise ValueError(f"{what} is no image that OpenCV reads, like JPEG or PNG")
    return image


class Sequential:
    """Calls its transforms one after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class File2Image:
    """A path to the image in BGR."""

    def __call__(self, path: str | Path) -> Image:
        return decoded(Path(path).read_bytes(), str(path))


class URL2Image:
    """An http or https address to the image in BGR; at most 64 MiB, in ten seconds."""

    def __call__(self, url: str) -> Image:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url[:80]!r} is no http or https address")
        with urllib.request.urlopen(url, timeout=_URL_TIMEOUT_S) as response:
            data: bytes = response.read(_URL_BYTES + 1)
        if len(data) > _URL_BYTES:
            raise ValueError(f"{url[:80]!r} has more than {_URL_BYTES} bytes")
        return decoded(data, url[:80])


class Base64ToImage:
    """Base64 of a file to the image in BGR."""

    def __call__(self, text: str | bytes) -> Image:
        return decoded(base64.b64decode(text), "the text")


class BGR2RGB:
    """The colours in the other order."""

    def __call__(self, image: Image) -> Image:
        return image[:, :, ::-1]


class RGB2BGR(BGR2RGB):
    """The same turn, under the name that says where it leads."""


class Div:
    """Each value divided, as float32."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, image: Image) -> Image:
        return image.astype(np.float32) / np.float32(self.value)


class Normalize:
    """Less the mean of its channel, divided by its deviation; float32."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], channel_first: bool = False) -> None:
        shape = (-1, 1, 1) if channel_first else (1, 1, -1)
        self.mean = np.array(mean, np.float32).reshape(shape)
        self.std = np.array(std, np.float32).reshape(shape)

    def __call__(self, image: Image) -> Image:
        result: Image = (image.astype(np.float32) - self.mean) / self.std
        return result


class Transpose:
    """The axes in this order, e.g. (2, 0, 1)."""

    def __init__(self, transpose_target: Sequence[int]) -> None:
        self.axes = tuple(transpose_target)

    def __call__(self, image: Image) -> Image:
        return image.transpose(self.axes)


class CenterCrop:
    """The middle `size` x `size` of the image, or less where it is smaller."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Image) -> Image:
        top, left = (max(0, (side - self.size) // 2) for side in image.shape[:2])
        return image[top : top + self.size, left : left + self.size, :]


class Resize:
    """To (width, height), or until the shorter side is `size` and the longer at most `max_size`."""

    def __init__(
        self, size: int | tuple[int, int], max_size: int = 2147483647, interpolation: int | None = None
    ) -> None:
        self.size = size
        self.max_size = max_size
        self.interpolation = interpolation

    def __call__(self, image: Image) -> Image:
        height, width = image.shape[:2]
        if isinstance(self.size, int):
            scale = min(self.size / min(height, width), self.max_size / max(height, width))
            target = (round(width * scale), round(height * scale))
        else:
            target = (min(self.size[0], self.max_size), min(self.size[1], self.max_size))
        options = {} if self.interpolation is None else {"interpolation": self.interpolation}
        resized: Image = opencv().resize(image, target, **options)
        return resized
