"""A colour for each class, far from its neighbours' and the same in every run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def class_colors(classes: int) -> NDArray[np.uint8]:
    """(classes, 3): the bits of a class's number dealt to the channels, highest first: Pascal VOC's."""
    numbers = np.arange(classes)
    colors = np.zeros((classes, 3), np.int64)
    for step in range(8):
        for channel in range(3):
            colors[:, channel] |= (numbers >> (3 * step + channel) & 1) << (7 - step)
    return colors.astype(np.uint8)
