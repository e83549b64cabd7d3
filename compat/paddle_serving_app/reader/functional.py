"""The image operations behind the transforms, as functions: transpose, normalize, crop, resize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paddle_serving_app.reader.image_sources import Image
from paddle_serving_app.reader.vision_extra import opencv

NO_LIMIT = 2147483647


def transpose(img: Image, transpose_target: Sequence[int]) -> Image:
    """Reorder the axes of an image, such as (2, 0, 1) for HWC to CHW; return a view."""
    return img.transpose(transpose_target)


def normalize(img: Any, mean: Sequence[float], std: Sequence[float], channel_first: bool) -> Image:
    """Subtract the mean of each channel and divide by its deviation; return float32.

    Mean and deviation are float64, and each step is rounded to float32, as when the models were trained.
    """
    shape = (-1, 1, 1) if channel_first else (1, 1, -1)
    result = np.array(img, np.float32)
    result -= np.asarray(mean, np.float64).reshape(shape)
    result /= np.asarray(std, np.float64).reshape(shape)
    return result


def crop(img: Image, target_size: int, center: bool) -> Image:
    """Crop an image to a square of `target_size` pixels, in the middle or at a random place.

    Returns a view. A smaller image is cropped as far as possible.
    """
    spare = (max(0, side - target_size) for side in img.shape[:2])
    top, x = (room // 2 if center else np.random.randint(0, room + 1) for room in spare)
    return img[top : top + target_size, x : x + target_size, :]


def resize(
    img: Image,
    target_size: float | tuple[int, int],
    max_size: int = NO_LIMIT,
    interpolation: int | None = None,
) -> Image:
    """Resize an image to (width, height), or its shorter side to `target_size`.

    max_size: limit of both sides. interpolation: OpenCV's number; None and 0 are INTER_LINEAR.
    """
    cv2 = opencv()
    # INTER_NEAREST is 0, which the original took for "not given": the same images must come out.
    size = _get_size(img, target_size, max_size)
    result: Image = cv2.resize(img, size, interpolation=interpolation or cv2.INTER_LINEAR)
    return result


def _get_size(img: Image, target_size: float | tuple[int, int], max_size: int) -> tuple[int, int]:
    if isinstance(target_size, tuple | list):
        return min(target_size[0], max_size), min(target_size[1], max_size)
    height, width = img.shape[:2]
    scale = float(target_size) / min(height, width)
    if round(scale * max(height, width)) > max_size:
        scale = max_size / max(height, width)
    return round(width * scale), round(height * scale)
