"""Stand-ins for the models of image apps: as small as can be, with the originals' feeds and fetches.

    text_detector(folder)     x [-1, 3, -1, -1] -> probability that a pixel is text: first channel
    text_recogniser(folder)   x [-1, 3, 32, -1] -> CTC classes [-1, steps, 11]: the third channel's brightness
                              is the digit; blank where the first is dark
    image_classifier(folder)  image [-1, 3, -1, -1] -> score [-1, 3]: softmax of each channel's mean
    box_detector(folder)      image [-1, 3, -1, -1], im_shape, scale_factor [-1, 2] -> boxes (found, 6), count
                              of each image's boxes: cells of 80 x 80 where a channel is bright, by NMS

`digit_pixel` gives the colour of a digit, `text_image` an image of digits.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.support import models

DIGITS = 10
FETCH = "save_infer_model/scale_0.tmp_1"
CELL = 80  # pixels of the detector's grid; an image of warm-up has 64


def text_detector(folder: Path) -> Path:
    return models.built(folder, "text_detector", __file__)


def text_recogniser(folder: Path) -> Path:
    return models.built(folder, "text_recogniser", __file__)


def image_classifier(folder: Path) -> Path:
    return models.built(folder, "image_classifier", __file__)


def box_detector(folder: Path) -> Path:
    return models.built(folder, "box_detector", __file__)


def digit_pixel(digit: int) -> tuple[int, int, int]:
    """In the order of OpenCV's channels: bright, unused, and the digit's own brightness."""
    return 255, 0, round(255 * (digit + 0.5) / DIGITS)


def text_image(lines: Sequence[Sequence[int]]) -> np.ndarray:
    """A line of digits below the other, each digit a bar of 60 x 24 pixels at a place of 100 x 60."""
    image = np.zeros((60 * len(lines), 100 * max(map(len, lines)), 3), np.uint8)
    for row, line in enumerate(lines):
        for column, digit in enumerate(line):
            image[60 * row + 18 : 60 * row + 42, 100 * column + 20 : 100 * column + 80] = digit_pixel(digit)
    return image


def _build_text_detector(target: Path) -> None:
    import paddle

    class Detector(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.steepness = self.create_parameter([1])
            self.steepness.set_value(paddle.to_tensor([10.0]))

        def forward(self, x):  # type: ignore[no-untyped-def]
            return paddle.nn.functional.sigmoid(self.steepness * x[:, 0:1])

    shape = (-1, 3, -1, -1)
    models.save(Detector(), target, feeds={"x": ("float32", shape)}, fetch=(FETCH, (-1, 1, -1, -1)))


def _build_text_recogniser(target: Path) -> None:
    import paddle

    class Recogniser(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.levels = self.create_parameter([1, 1, DIGITS])
            levels = 2 * (paddle.arange(DIGITS, dtype="float32") + 0.5) / DIGITS - 1
            self.levels.set_value(levels.reshape([1, 1, DIGITS]))

        def forward(self, x):  # type: ignore[no-untyped-def]
            middle = paddle.nn.functional.avg_pool2d(x[:, :, 12:20], [8, 4], stride=[8, 4]).squeeze(2)
            likeness = 1 - (middle[:, 2].unsqueeze(-1) - self.levels).abs()
            blank = 2 * (middle[:, 0:1] < 0.99).astype("float32").transpose([0, 2, 1])
            return paddle.nn.functional.softmax(50 * paddle.concat([blank, likeness], axis=-1))

    feeds = {"x": ("float32", (-1, 3, 32, -1))}
    models.save(Recogniser(), target, feeds=feeds, fetch=(FETCH, (-1, -1, DIGITS + 1)))


def _build_image_classifier(target: Path) -> None:
    import paddle

    class Classifier(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.scale = self.create_parameter([1])
            self.scale.set_value(paddle.to_tensor([2.0]))

        def forward(self, image):  # type: ignore[no-untyped-def]
            return paddle.nn.functional.softmax(self.scale * image.mean([2, 3]))

    feeds = {"image": ("float32", (-1, 3, -1, -1))}
    models.save(Classifier(), target, feeds=feeds, fetch=("score", (-1, 3)))


def _build_box_detector(target: Path) -> None:
    import tempfile

    import paddle

    from pipeline.models.serving_model import Variable, write_serving_model

    paddle.enable_static()
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        image = paddle.static.data("image", [-1, 3, -1, -1], "float32")
        im_shape = paddle.static.data("im_shape", [-1, 2], "float32")
        scale_factor = paddle.static.data("scale_factor", [-1, 2], "float32")
        scores = paddle.nn.functional.sigmoid(5 * paddle.nn.functional.avg_pool2d(image, CELL)).flatten(2)
        cell = paddle.static.create_parameter(
            [1], "float32", default_initializer=paddle.nn.initializer.Constant(CELL)
        )
        rows, columns = (paddle.arange(paddle.shape(image)[axis] // CELL) for axis in (2, 3))
        y, x = (steps.flatten().astype("float32") * cell for steps in paddle.meshgrid(rows, columns))
        grid = paddle.stack([x, y, x + cell - 1, y + cell - 1], axis=-1).unsqueeze(0)
        factor = paddle.concat([scale_factor, scale_factor], axis=-1).unsqueeze(1)
        boxes = grid / factor + 0 * im_shape.sum(-1).unsqueeze([1, 2])
        found, _, number = paddle._C_ops.multiclass_nms3(
            boxes, scores, None, 0.6, 100, 100, 0.5, False, 1.0, -1
        )
        executor = paddle.static.Executor(paddle.CPUPlace())
        executor.run(startup)
        with tempfile.TemporaryDirectory() as work:
            paddle.static.save_inference_model(
                f"{work}/inference",
                [image, im_shape, scale_factor],
                [found, number],
                executor,
                program=program,
            )
            pairs = [Variable(n, n, "float32", (-1, 2)) for n in ("im_shape", "scale_factor")]
            write_serving_model(
                target,
                Path(work, "inference.json"),
                Path(work, "inference.pdiparams"),
                [Variable("image", "image", "float32", (-1, 3, -1, -1)), *pairs],
                [
                    Variable("fetch_name_0", FETCH, "float32", (-1, 6)),
                    Variable("fetch_name_1", "save_infer_model/scale_1.tmp_1", "int32", (-1,)),
                ],
            )


if __name__ == "__main__":
    globals()[f"_build_{sys.argv[1]}"](Path(sys.argv[2]))
