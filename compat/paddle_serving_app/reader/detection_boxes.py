"""Postprocessing of an object detector: output rows to boxes, which are drawn into the image on request.

A row is [class, score, xmin, ymin, xmax, ymax].
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from paddle_serving_app.reader.colors import class_colors
from pipeline.text_lines import read_lines

Box = dict[str, Any]

DRAWN_SCORE = 0.5
_NOT_BOXES = ("image", "im_shape")


class RCNNPostprocess:
    """Converts a detector's outputs to a list of {"category_id", "bbox", "score"}.

    "bbox" is [xmin, ymin, width, height]. label_file: a file with one class per line. resize_shape: (width,
    height) to which the boxes refer, if different from the image's size. With `visualize`, the output "image"
    is the path of the image. Then a copy of the image with the boxes of score 0.5 or more, and the list as
    bbox.json, are written to `output_dir`.
    """

    def __init__(
        self, label_file: str | Path, output_dir: str | Path, resize_shape: tuple[int, int] | None = None
    ) -> None:
        self.label_file = label_file
        self.output_dir = output_dir
        self.resize_shape = resize_shape
        self.label_list = [line.strip() for line in read_lines(Path(label_file))]

    def __call__(self, image_with_bbox: Mapping[str, Any], visualize: bool = True) -> list[Box]:
        """Return the list of boxes in a detector's outputs, given by name.

        With `visualize`, also draw the boxes. Raises ValueError if there are no rows of boxes, or for a class
        that has no label.
        """
        boxes = [self._box(row, image_with_bbox) for row in _rows(image_with_bbox)]
        if visualize:
            self._draw(Path(image_with_bbox["image"]), boxes)
        return boxes

    def _box(self, row: list[float], fetches: Mapping[str, Any]) -> Box:
        number, score = int(row[0]), row[1]
        if number >= len(self.label_list):
            raise ValueError(
                f"the model found class {number}, but {self.label_file} has {len(self.label_list)} labels"
            )
        return {"category_id": number, "bbox": self._place(row[2:], fetches), "score": score}

    def _place(self, corners: list[float], fetches: Mapping[str, Any]) -> list[float]:
        """Return the box as [xmin, ymin, width, height] in pixels. Pixels on both edges belong to the box."""
        xmin, ymin, xmax, ymax = corners
        return [xmin, ymin, xmax - xmin + 1, ymax - ymin + 1]

    def _draw(self, path: Path, boxes: list[Box]) -> None:
        folder = Path(self.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as file:
            image = file.convert("RGB")
        colors = class_colors(len(self.label_list))
        for box in boxes:
            if box["score"] >= DRAWN_SCORE:
                self._draw_box(image, box, tuple(colors[box["category_id"]]))
        image.save(folder / path.name, quality=95)
        (folder / "bbox.json").write_text(json.dumps(boxes, indent=4), "utf-8")

    def _draw_box(self, image: Image.Image, box: Box, color: tuple[int, ...]) -> None:
        xmin, ymin, width, height = box["bbox"]
        scale_x, scale_y = 1.0, 1.0
        if self.resize_shape is not None:
            scale_x, scale_y = (
                side / resized for side, resized in zip(image.size, self.resize_shape, strict=True)
            )
        x_min, x_max = xmin * scale_x, (xmin + width) * scale_x
        top, bottom = ymin * scale_y, (ymin + height) * scale_y
        draw = ImageDraw.Draw(image)
        corners = [(x_min, top), (x_min, bottom), (x_max, bottom), (x_max, top), (x_min, top)]
        draw.line(corners, width=2, fill=color)
        text = f"{self.label_list[box['category_id']]} {box['score']:.2f}"
        _, _, text_width, text_height = draw.textbbox((0, 0), text)
        draw.rectangle([(x_min + 1, top - text_height), (x_min + text_width + 1, top)], fill=color)
        draw.text((x_min + 1, top - text_height), text, fill=(255, 255, 255))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(label_file={self.label_file}, output_dir={self.output_dir})"


class BlazeFacePostprocess(RCNNPostprocess):
    """Converts the outputs of a face detector to boxes in pixels.

    The detector's corners are between 0 and 1. The output "im_shape" is (height, width) of the image.
    """

    def _place(self, corners: list[float], fetches: Mapping[str, Any]) -> list[float]:
        height, width = (int(side) for side in np.asarray(fetches["im_shape"]).reshape(-1)[:2])
        xmin, ymin, xmax, ymax = (min(max(corner, 0.0), 1.0) for corner in corners)
        return [xmin * width, ymin * height, (xmax - xmin) * width, (ymax - ymin) * height]


def _rows(fetches: Mapping[str, Any]) -> list[list[float]]:
    """Return the rows of all boxes, from the last output that is neither LoD offsets nor "image".

    Raises ValueError for an output of another shape.
    """
    names = [name for name in fetches if name not in _NOT_BOXES and not name.endswith(".lod")]
    if not names:
        raise ValueError("the fetches have no boxes; fetch the model's output of boxes")
    rows = np.asarray(fetches[names[-1]])
    if rows.shape == (1, 1):  # older programs without a box
        return []
    if rows.ndim != 2 or rows.shape[1] != 6:
        raise ValueError(
            f"fetch {names[-1]!r} has shape {rows.shape}; boxes have (boxes, 6): class, score and corners. "
            "Name the output of boxes alone in fetch_list"
        )
    offsets = fetches.get(f"{names[-1]}.lod")
    if offsets is not None:  # without LoD, the fetch has only these images
        rows = rows[: int(offsets[-1]) - int(offsets[0])]
    boxes: list[list[float]] = rows[rows[:, 0] >= 0].tolist()
    return boxes
