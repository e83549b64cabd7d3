"""Transforms of images, arrays of (height, width, 3), that follow each other in a `Sequential`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paddle_serving_app.reader import functional
from paddle_serving_app.reader.functional import NO_LIMIT
from paddle_serving_app.reader.image_sources import Image, decoded
from paddle_serving_app.reader.vision_extra import opencv


class Sequential:
    """Calls its transforms one after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image

    def __repr__(self) -> str:
        return "\n    ".join([f"{type(self).__name__}(", *map(repr, self.transforms)]) + "\n)"


class Lambda:
    """A function of the app as a transform."""

    def __init__(self, lambd: Callable[[Any], Any]) -> None:
        if not callable(lambd):
            raise TypeError(f"Lambda takes a function, not {type(lambd).__name__}")
        self.lambd = lambd

    def __call__(self, image: Any) -> Any:
        return self.lambd(image)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class BGR2RGB:
    """The colours in the other order; a view."""

    def __call__(self, image: Image) -> Image:
        return image[:, :, ::-1]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class RGB2BGR(BGR2RGB):
    """BGR2RGB under the name for the opposite direction."""


class Div:
    """Each value divided, as float32."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, image: Image) -> Image:
        return image.astype(np.float32) / np.float32(self.value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value})"


class Normalize:
    """Subtracts the mean of each channel and divides by its deviation; float32."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], channel_first: bool = False) -> None:
        self.mean = mean
        self.std = std
        self.channel_first = channel_first

    def __call__(self, image: Any) -> Image:
        return functional.normalize(image, self.mean, self.std, self.channel_first)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(mean={self.mean}, std={self.std})"


class Transpose:
    """The axes in this order, e.g. (2, 0, 1); a view."""

    def __init__(self, transpose_target: Sequence[int]) -> None:
        self.transpose_target = transpose_target

    def __call__(self, image: Image) -> Image:
        return functional.transpose(image, self.transpose_target)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.transpose_target})"


class CenterCrop:
    """The middle `size` x `size` of the image, or less where it is smaller; a view."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Image) -> Image:
        return functional.crop(image, self.size, center=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.size})"


class Resize:
    """To (width, height), or until the shorter side is `size` and the longer at most `max_size`.

    `interpolation` is OpenCV's number; None and 0 are its INTER_LINEAR.
    """

    def __init__(
        self, size: float | tuple[int, int], max_size: int = NO_LIMIT, interpolation: int | None = None
    ) -> None:
        self.size = size
        self.max_size = max_size
        self.interpolation = interpolation

    def __call__(self, image: Image) -> Image:
        return functional.resize(image, self.size, self.max_size, self.interpolation)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(size={self.size}, max_size={self.max_size}, "
            f"interpolation={self.interpolation})"
        )


class ResizeByFactor:
    """Both sides to a multiple of `factor`, the longer at most `max_side_len`; as text detectors want it."""

    def __init__(self, factor: int = 32, max_side_len: int = 2400) -> None:
        self.factor = factor
        self.max_side_len = max_side_len

    def __call__(self, image: Image) -> Image:
        height, width = image.shape[:2]
        scale = min(1.0, self.max_side_len / max(height, width))
        # Height steps down by 32 whatever the factor is: the original's, and part of what its models are fed.
        target = self._multiple(int(width * scale), self.factor), self._multiple(int(height * scale), 32)
        return _array(opencv().resize(image, target))

    def _multiple(self, side: int, step: int) -> int:
        """The side where it is a multiple already, else one step below the next smaller multiple."""
        if side % self.factor:
            side = (side // step - 1) * step if side // self.factor > 1 else 0
        return max(side, self.factor)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(factor={self.factor}, max_side_len={self.max_side_len})"


class PadStride:
    """An image of (3, height, width) with zeros at its end, until both sides are multiples; float32."""

    def __init__(self, stride: int) -> None:
        self.coarsest_stride = stride

    def __call__(self, image: Image) -> Image:
        return padded(image, self.coarsest_stride)


def padded(image: Image, stride: int) -> Image:
    """(3, height, width) with zeros at its end; the image itself when there is no stride."""
    if stride <= 0:
        return image
    channels, height, width = image.shape
    result = np.zeros((channels, -(-height // stride) * stride, -(-width // stride) * stride), np.float32)
    result[:, :height, :width] = image
    return result


class ImageReader:
    """`process_image(bytes)`: a file's bytes to the (3, 224, 224) that ImageNet's classifiers take."""

    def __init__(
        self,
        image_shape: Sequence[int] = (3, 224, 224),
        image_mean: Sequence[float] = (0.485, 0.456, 0.406),
        image_std: Sequence[float] = (0.229, 0.224, 0.225),
        resize_short_size: int = 256,
        interpolation: int | None = None,
        crop_center: bool = True,
    ) -> None:
        self.image_shape = image_shape
        self.crop_center = crop_center
        self._resize = Resize(resize_short_size, interpolation=interpolation)
        self._normalize = Sequential(
            [BGR2RGB(), Transpose((2, 0, 1)), Div(255), Normalize(image_mean, image_std, channel_first=True)]
        )

    def process_image(self, sample: bytes) -> Image:
        """float32. Raises ValueError for bytes that are no image."""
        image = decoded(sample, "the sample")
        if self.image_shape[1] > 0:
            image = self._crop(self._resize(image))
        return _array(self._normalize(image))

    def _crop(self, image: Image) -> Image:
        return functional.crop(image, self.image_shape[1], self.crop_center)


def _array(value: Any) -> Image:
    """Give the result of an untyped package its type."""
    result: Image = value
    return result
