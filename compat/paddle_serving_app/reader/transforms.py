"""Image transforms for arrays (height, width, 3), which `Sequential` chains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paddle_serving_app.reader import functional
from paddle_serving_app.reader.functional import NO_LIMIT
from paddle_serving_app.reader.image_sources import Image, decoded
from paddle_serving_app.reader.vision_extra import opencv


class Sequential:
    """Applies transforms one after the other to an image."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image

    def __repr__(self) -> str:
        return "\n    ".join([f"{type(self).__name__}(", *map(repr, self.transforms)]) + "\n)"


class Lambda:
    """Wraps a user's function as a transform."""

    def __init__(self, lambd: Callable[[Any], Any]) -> None:
        if not callable(lambd):
            raise TypeError(f"Lambda takes a function, not {type(lambd).__name__}")
        self.lambd = lambd

    def __call__(self, image: Any) -> Any:
        return self.lambd(image)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class BGR2RGB:
    """Reverses the colour channels of an image, BGR to RGB; returns a view."""

    def __call__(self, image: Image) -> Image:
        return image[:, :, ::-1]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class RGB2BGR(BGR2RGB):
    """Reverses the colour channels of an image, RGB to BGR; returns a view."""


class Div:
    """Divides the pixels of an image by a number; returns float32."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, image: Image) -> Image:
        return image.astype(np.float32) / np.float32(self.value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value})"


class Normalize:
    """Subtracts the mean of each channel and divides by its deviation; returns float32."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], channel_first: bool = False) -> None:
        self.mean = mean
        self.std = std
        self.channel_first = channel_first

    def __call__(self, image: Any) -> Image:
        return functional.normalize(image, self.mean, self.std, self.channel_first)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(mean={self.mean}, std={self.std})"


class Transpose:
    """Reorders the axes of an image, such as (2, 0, 1) for HWC to CHW; returns a view."""

    def __init__(self, transpose_target: Sequence[int]) -> None:
        self.transpose_target = transpose_target

    def __call__(self, image: Image) -> Image:
        return functional.transpose(image, self.transpose_target)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.transpose_target})"


class CenterCrop:
    """Crops the middle `size` x `size` pixels of an image, or fewer of a smaller image; returns a view."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Image) -> Image:
        return functional.crop(image, self.size, center=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.size})"


class Resize:
    """Resizes an image to (width, height), or its shorter side to `size`.

    max_size: limit of both sides. interpolation: OpenCV's number; None and 0 are INTER_LINEAR.
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
    """Resizes an image for a text detector: both sides become multiples of `factor`, at least `factor`.

    If `factor` is not 32, a height that is not a multiple of it becomes a multiple of 32. max_side_len: limit
    of the longer side.
    """

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
        """Return `side` if it is a multiple of `factor`, else the second multiple of `step` below it.

        The result is at least `factor`.
        """
        if side % self.factor:
            side = (side // step - 1) * step if side // self.factor > 1 else 0
        return max(side, self.factor)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(factor={self.factor}, max_side_len={self.max_side_len})"


class PadStride:
    """Pads an image of shape (3, height, width) with zeros to multiples of `stride`; returns float32."""

    def __init__(self, stride: int) -> None:
        self.coarsest_stride = stride

    def __call__(self, image: Image) -> Image:
        return padded(image, self.coarsest_stride)


def padded(image: Image, stride: int) -> Image:
    """Pad an image of shape (3, height, width) with zeros to multiples of `stride`; return float32.

    A stride of 0 returns the image unchanged.
    """
    if stride <= 0:
        return image
    channels, height, width = image.shape
    result = np.zeros((channels, -(-height // stride) * stride, -(-width // stride) * stride), np.float32)
    result[:, :height, :width] = image
    return result


class ImageReader:
    """Converts the bytes of an image file to the (3, 224, 224) input of an ImageNet classifier.

    image_shape: its second number is the side of the square crop; 0 means no resizing and no crop.
    crop_center: if False, the crop is at a random place.
    """

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
        """Decode, resize, crop and normalize an image; return float32. Raise ValueError for other bytes."""
        image = decoded(sample, "the sample")
        if self.image_shape[1] > 0:
            image = self._crop(self._resize(image))
        return _array(self._normalize(image))

    def _crop(self, image: Image) -> Image:
        return functional.crop(image, self.image_shape[1], self.crop_center)


def _array(value: Any) -> Image:
    """Return `value` unchanged, typed as an array for mypy."""
    result: Image = value
    return result
