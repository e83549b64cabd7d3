"""Colours for the classes of a detection or segmentation, the same in every process."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def class_colors(classes: int) -> NDArray[np.uint8]:
    """Return an RGB colour for each class, of shape (classes, 3): the palette of Pascal VOC."""
    numbers = np.arange(classes)
    colors = np.zeros((classes, 3), np.int64)
    for step in range(8):
        for channel in range(3):
            colors[:, channel] |= (numbers >> (3 * step + channel) & 1) << (7 - step)
    return colors.astype(np.uint8)
