"""Image transforms of `paddle_serving_app.reader`: OpenCV's pixels, the original's sizes and rounding."""

from __future__ import annotations

import base64
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from paddle_serving_app import reader
from paddle_serving_app.reader import (
    BGR2RGB,
    Base64ToImage,
    DetectionFile2Image,
    DetectionNormalize,
    DetectionPadStride,
    DetectionResize,
    DetectionSequential,
    DetectionTranspose,
    Div,
    File2Image,
    ImageReader,
    Normalize,
    PadStride,
    Resize,
    ResizeByFactor,
    Sequential,
    Transpose,
    URL2Image,
)

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
IMAGE = np.random.default_rng(1).integers(0, 256, (50, 80, 3), dtype=np.uint8)
PNG = cv2.imencode(".png", IMAGE)[1].tobytes()


def test_the_package_has_every_name_of_the_original() -> None:
    names = """Base64ToImage BGR2RGB BlazeFacePostprocess CenterCrop ChineseBertReader DBPostProcess
        DetectionBGR2RGB DetectionFile2Image DetectionNormalize DetectionPadStride DetectionResize
        DetectionSequential DetectionTranspose Div File2Image FilterBoxes GetRotateCropImage Image2Array
        ImageReader IMDBDataset LACReader Normalization Normalize OCRReader PadStride RCNNPostprocess Resize
        ResizeByFactor RGB2BGR Sampler Scale SegPostprocess SentaReader Sequential SortedBoxes TenCrop
        Transpose URL2Image VideoDecoder"""
    star: dict[str, Any] = {}
    exec("from paddle_serving_app.reader import *", star)  # noqa: S102
    assert [name for name in names.split() if name not in star] == []


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((Resize(20),), (32, 20)),
        ((Resize(20, 30),), (30, 19)),  # the longer side is capped, and takes the shorter along
        ((Resize(33.0),), (53, 33)),
        ((Resize((41, 23)),), (41, 23)),
        ((Resize((41, 23), 30),), (30, 23)),
        ((ResizeByFactor(32, 960),), (32, 32)),
        ((ResizeByFactor(16, 64),), (64, 16)),
        ((ResizeByFactor(10),), (80, 50)),
    ],
)
def test_an_image_is_resized_as_opencv_does_it_to_the_size_of_the_rule(
    size: tuple[Any], expected: tuple[int, int]
) -> None:
    assert np.array_equal(size[0](IMAGE), cv2.resize(IMAGE, expected))


def test_an_interpolation_is_opencvs_and_zero_is_linear_as_it_always_was() -> None:
    cubic = Resize((40, 30), interpolation=cv2.INTER_CUBIC)(IMAGE)
    assert np.array_equal(cubic, cv2.resize(IMAGE, (40, 30), interpolation=cv2.INTER_CUBIC))
    nearest = Resize((40, 30), interpolation=cv2.INTER_NEAREST)(IMAGE)
    assert np.array_equal(nearest, cv2.resize(IMAGE, (40, 30)))


def test_normalising_rounds_to_float32_after_each_step() -> None:
    result = Sequential([Div(255), Normalize(MEAN, STD)])(IMAGE)
    expected = IMAGE.astype(np.float32) / np.float32(255)
    expected = (expected.astype(np.float64) - MEAN).astype(np.float32)
    expected = (expected.astype(np.float64) / STD).astype(np.float32)
    assert result.dtype == np.float32 and np.array_equal(result, expected)


def test_padding_fills_up_to_the_stride_with_zeros() -> None:
    chw = Transpose((2, 0, 1))(IMAGE)
    padded = PadStride(32)(chw)
    assert padded.shape == (3, 64, 96) and padded.dtype == np.float32
    assert np.array_equal(padded[:, :50, :80], chw) and padded[:, 50:].sum() == padded[:, :, 80:].sum() == 0
    assert PadStride(0)(chw) is chw


def test_files_base64_and_bytes_are_the_image_in_bgr(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    assert np.array_equal(File2Image()(str(tmp_path / "a.png")), IMAGE)
    assert np.array_equal(Base64ToImage()(base64.b64encode(PNG).decode()), IMAGE)


@pytest.mark.parametrize("data", [b"", b"no image"])
def test_bytes_that_are_no_image_are_told_in_one_sentence(data: bytes) -> None:
    with pytest.raises(ValueError, match="the text is no image that OpenCV reads, like JPEG or PNG"):
        Base64ToImage()(base64.b64encode(data))


def test_the_image_reader_gives_what_a_classifier_takes() -> None:
    result = ImageReader(resize_short_size=40, image_shape=[3, 32, 32]).process_image(PNG)
    scale = cv2.resize(IMAGE, (64, 40))[4:36, 16:48, ::-1]
    np.testing.assert_allclose(result, ((scale / 255 - MEAN) / STD).transpose(2, 0, 1), rtol=1e-4, atol=1e-6)


@pytest.fixture
def address() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PNG if self.path == "/a.png" else b"\0" * (65 << 20))

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_address_is_read_up_to_a_bound_and_only_over_http(address: str, tmp_path: Path) -> None:
    assert np.array_equal(URL2Image()(f"{address}/a.png"), IMAGE)
    with pytest.raises(ValueError, match="has more than 67108864 bytes"):
        URL2Image()(f"{address}/large")
    (tmp_path / "a.png").write_bytes(PNG)
    with pytest.raises(ValueError, match="is no http or https address"):
        URL2Image()(f"file://{tmp_path}/a.png")


def test_detection_transforms_note_the_size_and_the_scale(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    steps = [DetectionNormalize(MEAN, STD), DetectionTranspose((2, 0, 1)), DetectionPadStride(32)]
    read = DetectionSequential([DetectionFile2Image(), DetectionResize((100, 120)), *steps])
    image, info = read(str(tmp_path / "a.png"))
    scale = 120 / 80
    resized = cv2.resize(np.ascontiguousarray(IMAGE[:, :, ::-1]), None, fx=scale, fy=scale)
    expected = ((resized / 255 - MEAN) / STD).transpose(2, 0, 1)
    assert info is not None and info["im_shape"].tolist() == [75.0, 120.0]
    assert info["scale_factor"].tolist() == [1.5, 1.5] and info["scale_factor"].dtype == np.float32
    assert image.shape == (3, 96, 128)
    np.testing.assert_allclose(image[:, :75, :120], expected, rtol=1e-4, atol=1e-6)


def test_detection_may_leave_the_ratio() -> None:
    image, info = DetectionSequential([DetectionResize((30, 200), keep_ratio=False, interpolation=2)])(IMAGE)
    assert np.array_equal(image, cv2.resize(IMAGE, (200, 30), interpolation=cv2.INTER_CUBIC))
    assert info is not None and info["scale_factor"].tolist() == [np.float32(0.6), 2.5]


def test_a_sequence_tells_its_transforms() -> None:
    text = repr(Sequential([BGR2RGB(), Div(255), Resize(640, 640)]))
    assert "BGR2RGB()" in text and "Div(255)" in text and "Resize(size=640, max_size=640" in text
    assert reader.image_reader.Sequential is Sequential
