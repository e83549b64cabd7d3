"""Postprocessing of a segmentation model: writes the mask as an image, plain and in colours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paddle_serving_app.reader.colors import class_colors
from paddle_serving_app.reader.vision_extra import opencv

MASK_SIZE = 512


class SegPostprocess:
    """Writes a_jpg_mask.png and a_jpg_result.png for {"filename": "a.jpg", "output": mask}.

    The mask image has the class of each of 512 x 512 pixels. The result image shows the classes in colours,
    at the image's size.
    """

    def __init__(self, class_num: int) -> None:
        self.class_num = class_num

    def __call__(self, image_with_result: Mapping[str, Any]) -> None:
        """Write both images, and raise ValueError if the file name or the mask is missing or unusable."""
        cv2 = opencv()
        masks = [v for name, v in image_with_result.items() if ".lod" not in name and "filename" not in name]
        if "filename" not in image_with_result or not masks:
            raise ValueError("SegPostprocess takes {'filename': path of the image, <any name>: mask}")
        path = Path(image_with_result["filename"])
        original = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        if original is None:
            raise ValueError(f"{path} is no image that OpenCV reads")
        mask = np.asarray(masks[-1]).astype(np.uint8).reshape(MASK_SIZE, MASK_SIZE)
        colored = class_colors(self.class_num)[mask]
        height, width = original.shape[:2]
        colored = cv2.resize(colored, (width, height), interpolation=cv2.INTER_CUBIC)
        stem = path.with_name(path.name.replace(path.suffix, path.suffix.replace(".", "_")))
        cv2.imwrite(f"{stem}_mask.png", mask)
        cv2.imwrite(f"{stem}_result.png", colored)
