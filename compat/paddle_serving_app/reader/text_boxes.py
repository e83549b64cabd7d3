"""Postprocessing of a text detector: probability map to boxes of four corners, and boxes to image crops.

A box is float32 (4, 2): x and y of top left, top right, bottom right, bottom left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paddle_serving_app.reader.image_sources import Image
from paddle_serving_app.reader.vision_extra import clipper, opencv, polygons

MIN_SIDE = 3  # of a box in the probability map
SAME_LINE = 10  # boxes whose tops differ by less pixels are read from left to right
UPRIGHT = 1.5  # a crop this much higher than wide holds text that runs downwards


class DBPostProcess:
    """Converts text probabilities (n, 1, height, width) to boxes, by differentiable binarization.

    Keys of params: "thresh" (probability of a text pixel), "box_thresh" (mean probability of a box), and
    "max_candidates" (maximum boxes per image). "unclip_ratio" enlarges the boxes, because the model was
    trained on shrunk boxes.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.thresh = params["thresh"]
        self.box_thresh = params["box_thresh"]
        self.max_candidates = params["max_candidates"]
        self.unclip_ratio = params["unclip_ratio"]
        self.min_size = MIN_SIDE

    def __call__(self, pred: Image, ratio_list: Sequence[Sequence[float]]) -> list[Any]:
        """Return an integer array (boxes, 4, 2), or an empty list, for each image.

        ratio_list: (height, width) scale of each image. Raises ImportError without OpenCV, pyclipper and
        shapely.
        """
        return [
            self._scaled(self._boxes(probabilities[0]), ratios)
            for probabilities, ratios in zip(pred, ratio_list, strict=False)
        ]

    def _boxes(self, probabilities: Image) -> list[Image]:
        """Return the boxes in one probability map, in whole pixels of the map."""
        cv2 = opencv()
        bitmap = (probabilities > self.thresh).astype(np.uint8) * np.uint8(255)
        # OpenCV 3 returns the image before the two that other versions return.
        contours = cv2.findContours(bitmap, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)[-2]
        height, width = probabilities.shape
        boxes = []
        for contour in contours[: self.max_candidates]:
            corners, side = _smallest_box(contour)
            if side < self.min_size or _mean_inside(probabilities, corners) <= self.box_thresh:
                continue
            grown = _grown(corners, self.unclip_ratio)
            if grown is None:
                continue
            corners, side = _smallest_box(grown)
            if side >= self.min_size + 2:
                boxes.append(np.clip(np.round(corners), 0, (width, height)))
        return boxes

    def _scaled(self, boxes: list[Image], ratios: Sequence[float]) -> Any:
        if not boxes:
            return []
        ratio_h, ratio_w = ratios
        scaled = np.stack(boxes).astype(np.float64) / (ratio_w, ratio_h)
        return scaled.astype(np.int16 if scaled.max() <= np.iinfo(np.int16).max else np.int32)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(thresh={self.thresh}, box_thresh={self.box_thresh}, "
            f"max_candidates={self.max_candidates}, unclip_ratio={self.unclip_ratio})"
        )


class FilterBoxes:
    """Orders the corners of boxes, clips boxes to the image, and drops small boxes.

    A box is kept if it is wider than `width` and higher than `height`, in pixels.
    """

    def __init__(self, width: int, height: int) -> None:
        self.filter_width = width
        self.filter_height = height

    def __call__(self, dt_boxes: Any, image_shape: Sequence[int]) -> Image:
        """Return float32 boxes (boxes, 4, 2), or of shape (0,) if none is left.

        image_shape: height, width.
        """
        height, width = image_shape[:2]
        filtered = []
        for corners in dt_boxes:
            box = _clockwise(corners)
            box[:] = np.trunc(np.clip(box, 0, (width - 1, height - 1)))
            sides = int(np.linalg.norm(box[0] - box[1])), int(np.linalg.norm(box[0] - box[3]))
            if sides[0] > self.filter_width and sides[1] > self.filter_height:
                filtered.append(box)
        return np.array(filtered)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(width={self.filter_width}, height={self.filter_height})"


class SortedBoxes:
    """Sorts text boxes in reading order: lines from top to bottom, each from left to right."""

    def __call__(self, dt_boxes: Any) -> list[Any]:
        boxes = sorted(dt_boxes, key=lambda box: (box[0][1], box[0][0]))
        for i in range(len(boxes) - 1):
            first, second = boxes[i][0], boxes[i + 1][0]
            if abs(second[1] - first[1]) < SAME_LINE and second[0] < first[0]:
                boxes[i], boxes[i + 1] = boxes[i + 1], boxes[i]
        return boxes


class GetRotateCropImage:
    """Cuts a text box out of an image, and rectifies it. Vertical text is rotated to be horizontal."""

    def __call__(self, img: Image, points: Any) -> Image:
        cv2 = opencv()
        corners = np.asarray(points, np.float32)
        x_min, top = corners.min(axis=0).astype(int)
        right, bottom = corners.max(axis=0).astype(int)
        corners = corners - np.array([x_min, top], np.float32)
        width = int(np.linalg.norm(corners[0] - corners[1]))
        height = int(np.linalg.norm(corners[0] - corners[3]))
        target = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
        turn = cv2.getPerspectiveTransform(corners, target)
        region = np.ascontiguousarray(img[top:bottom, x_min:right, :])
        crop: Image = cv2.warpPerspective(region, turn, (width, height), borderMode=cv2.BORDER_REPLICATE)
        return np.rot90(crop) if crop.shape[0] / crop.shape[1] >= UPRIGHT else crop


def _smallest_box(points: Image) -> tuple[Image, float]:
    """Return the smallest rectangle, rotated by any angle, around points, and its shorter side's length."""
    cv2 = opencv()
    rectangle = cv2.minAreaRect(points)
    by_x = sorted(cv2.boxPoints(rectangle), key=lambda point: point[0])
    top_left, bottom_left = sorted(by_x[:2], key=lambda point: point[1])
    top_right, bottom_right = sorted(by_x[2:], key=lambda point: point[1])
    return np.array([top_left, top_right, bottom_right, bottom_left]), min(rectangle[1])


def _mean_inside(probabilities: Image, corners: Image) -> float:
    """Return the mean probability of the pixels inside a box."""
    cv2 = opencv()
    limits = np.array(probabilities.shape[::-1]) - 1
    low = np.clip(np.floor(corners.min(axis=0)).astype(np.int32), 0, limits)
    high = np.clip(np.ceil(corners.max(axis=0)).astype(np.int32), 0, limits)
    mask = np.zeros((high - low + 1)[::-1], np.uint8)
    cv2.fillPoly(mask, (corners - low.astype(corners.dtype)).reshape(1, -1, 2).astype(np.int32), 1)
    inside: float = cv2.mean(probabilities[low[1] : high[1] + 1, low[0] : high[0] + 1], mask)[0]
    return inside


def _grown(corners: Image, ratio: float) -> Image | None:
    """Return a box enlarged on each side by area * ratio / circumference; None if no box results."""
    pyclipper = clipper()
    polygon = polygons().Polygon(corners)
    offset = pyclipper.PyclipperOffset()
    offset.AddPath(corners, pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    paths = offset.Execute(polygon.area * ratio / polygon.length)
    return np.concatenate([np.array(path) for path in paths]).reshape(-1, 1, 2) if paths else None


def _clockwise(corners: Any) -> Image:
    corners = np.asarray(corners)
    by_x = corners[np.argsort(corners[:, 0], kind="stable")]
    left_corners, right_corners = by_x[:2], by_x[2:]
    top_left, bottom_left = left_corners[np.argsort(left_corners[:, 1], kind="stable")]
    top_right, bottom_right = right_corners[np.argsort(right_corners[:, 1], kind="stable")]
    return np.array([top_left, top_right, bottom_right, bottom_left], np.float32)
