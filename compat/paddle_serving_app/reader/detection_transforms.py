"""Image transforms for object detectors, which also record the image's size and scale for the model.

Each is called with the image and `info`, a dict of "im_shape" (height, width) and "scale_factor" (y, x), both
float32 of shape (2,), or None. It returns both. `DetectionSequential` chains transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddle_serving_app.reader.image_sources import File2Image, Image
from paddle_serving_app.reader.transforms import BGR2RGB, Div, Transpose, padded
from paddle_serving_app.reader.vision_extra import opencv

Info = dict[str, Any]
Noted = tuple[Image, Info | None]


class DetectionSequential:
    """Applies detection transforms one after the other, and returns (image, info).

    The argument is an image, or the argument of the first transform, such as a path.
    """

    def __init__(self, transforms: Sequence[Callable[[Any, Info | None], Noted]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Noted:
        info: Info | None = {"scale_factor": np.array([1.0, 1.0], np.float32), "im_shape": None}
        for transform in self.transforms:
            image, info = transform(image, info)
        return image, info

    def __repr__(self) -> str:
        return "\n    ".join([f"{type(self).__name__}(", *map(repr, self.transforms)]) + "\n)"


class DetectionFile2Image:
    """Reads an image file as RGB, and records its size in the info."""

    def __call__(self, path: str | Path, info: Info | None = None) -> Noted:
        image = np.ascontiguousarray(File2Image()(path)[:, :, ::-1])
        if info is not None:
            info["im_shape"] = np.array(image.shape[:2], np.float32)
            info["scale_factor"] = np.array([1.0, 1.0], np.float32)
        return image, info

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class DetectionBGR2RGB(BGR2RGB):
    """Reverses the colour channels of an image, BGR to RGB; returns a view."""

    def __call__(self, image: Image, info: Info | None = None) -> Noted:  # type: ignore[override]
        return super().__call__(image), info


class DetectionDiv(Div):
    """Divides the pixels of an image by a number; returns float32."""

    def __call__(self, image: Image, info: Info | None = None) -> Noted:  # type: ignore[override]
        return super().__call__(image), info


class DetectionTranspose(Transpose):
    """Reorders the axes of an image, such as (2, 0, 1) for HWC to CHW; returns a view."""

    def __call__(self, image: Image, info: Info | None = None) -> Noted:  # type: ignore[override]
        return super().__call__(image), info


class DetectionNormalize:
    """Normalizes an image by mean and deviation of each channel, after / 255 if `is_scale`; float32."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], is_scale: bool = True) -> None:
        self.mean = mean
        self.std = std
        self.is_scale = is_scale

    def __call__(self, image: Image, info: Info | None = None) -> Noted:
        result = image.astype(np.float32)
        if self.is_scale:
            result /= 255.0
        result -= np.asarray(self.mean, np.float64)
        result /= np.asarray(self.std, np.float64)
        return result, info

    def __repr__(self) -> str:
        return f"{type(self).__name__}(mean={self.mean}, std={self.std})"


class DetectionResize:
    """Resizes an image, and records the new size and the scale in the info.

    target_size: (height, width). With `keep_ratio`, the image's shorter side becomes the smaller of the two
    numbers, unless the longer side would exceed the larger number. interpolation: OpenCV's number; 1 is
    INTER_LINEAR.
    """

    def __init__(
        self, target_size: int | Sequence[int], keep_ratio: bool = True, interpolation: int = 1
    ) -> None:
        self.target_size = [target_size, target_size] if isinstance(target_size, int) else target_size
        if len(self.target_size) != 2 or min(self.target_size) <= 0:
            raise ValueError(f"target_size is {target_size}; give a number or (height, width) above 0")
        self.keep_ratio = keep_ratio
        self.interpolation = interpolation

    def __call__(self, image: Image, info: Info | None = None) -> Noted:
        scale_y, scale_x = self.generate_scale(image)
        image = opencv().resize(image, None, None, fx=scale_x, fy=scale_y, interpolation=self.interpolation)
        if info is not None:
            info["im_shape"] = np.array(image.shape[:2], np.float32)
            info["scale_factor"] = np.array([scale_y, scale_x], np.float32)
        return image, info

    def generate_scale(self, image: Image) -> tuple[float, float]:
        """Return the factors by which height and width of an image are scaled."""
        height, width = image.shape[:2]
        if not self.keep_ratio:
            return self.target_size[0] / height, self.target_size[1] / width
        scale = min(self.target_size) / min(height, width)
        if round(scale * max(height, width)) > max(self.target_size):
            scale = max(self.target_size) / max(height, width)
        return scale, scale

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(target_size={self.target_size}, keep_ratio={self.keep_ratio}, "
            f"interpolation={self.interpolation})"
        )


class DetectionPadStride:
    """Pads an image of shape (3, height, width) with zeros to multiples of `stride`; returns float32."""

    def __init__(self, stride: int = 0) -> None:
        self.coarsest_stride = stride

    def __call__(self, image: Image, info: Info | None = None) -> Noted:
        return padded(image, self.coarsest_stride), info
