"""`cv2.resize` with INTER_LINEAR of uint8 images, bit by bit, in NumPy: PaddleClas trains models on it.

OpenCV multiplies by weights of 11 bits and cuts off bits between the two directions; so is it done here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_WEIGHT_BITS = 11


def opencv_resize(pixels: Array, height: int, width: int) -> Array:
    """uint8 [height, width, channels] of another such array."""
    left_column, right_column, of_left, of_right = _neighbours(pixels.shape[1], width, cut=True)
    upper, lower, of_upper, of_lower = _neighbours(pixels.shape[0], height, cut=False)

    def across(rows: Array) -> Array:
        lines = pixels[rows]
        weighted: Array = (
            lines[:, left_column] * of_left[:, None] + lines[:, right_column] * of_right[:, None]
        )
        return weighted >> 4

    above = (across(upper) * of_upper[:, None, None]) >> 16
    below = (across(lower) * of_lower[:, None, None]) >> 16
    result: Array = ((above + below + 2) >> 2).astype(np.uint8)
    return result


def _neighbours(source: int, target: int, *, cut: bool) -> tuple[Array, Array, Array, Array]:
    """For each target the two source places that it lies between, and the weight of each.

    cut: beyond the first and the last place the nearer one has all weight.
    """
    at = ((np.arange(target) + 0.5) * (source / target) - 0.5).astype(np.float32)
    first = np.floor(at).astype(np.int64)
    share = at - first.astype(np.float32)
    if cut:
        share[(first < 0) | (first >= source - 1)] = 0
    unit = 1 << _WEIGHT_BITS
    of_first, of_next = (np.rint(part * unit).astype(np.int32) for part in (np.float32(1) - share, share))
    return first.clip(0, source - 1), (first + 1).clip(0, source - 1), of_first, of_next
