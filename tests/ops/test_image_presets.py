"""Images become what the libraries' evaluation transforms make of them, value by value."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from pipeline.models.description import ImageInput, describe
from pipeline.models.serving_model import Variable
from pipeline.ops.images import ImageReader
from tests.support.image_files import get_recording_path, held_sideways, photo

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)
SIZES = [(500, 375), (375, 500), (256, 256), (300, 231), (97, 203), (1200, 301)]
EACH_SIZE = pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
Array = np.ndarray[Any, np.dtype[Any]]


def feed_of(*shape: int, dtype: str = "float32") -> Variable:
    return Variable("x", "x", dtype, (-1, *shape))


def read(file: bytes, feed: Variable, **keys: Any) -> Array:
    """The first row of the feed that is made of a file."""
    given = {"inputs": {"image": {"kind": "image", **keys}}}
    image = describe(given, [feed], [feed], (), Path("serving.yml")).inputs["image"]
    assert isinstance(image, ImageInput)
    (row,) = ImageReader("image", image, feed).read_images({"image": file})
    return row


def torchvision(image: Image.Image, resize: int, crop: int, resampling: Image.Resampling) -> Array:
    """Resize(resize), CenterCrop(crop), ToTensor(), Normalize(): as torchvision's functional_pil has them."""
    width, height = image.size
    short, long = min(image.size), max(image.size)
    longer = int(resize * long / short)
    size = (resize, longer) if width <= height else (longer, resize)
    image = image.resize(size, resampling) if size != image.size else image
    width, height = image.size
    if crop > width or crop > height:
        image = ImageOps.expand(
            image,
            (
                (crop - width) // 2 if crop > width else 0,
                (crop - height) // 2 if crop > height else 0,
                (crop - width + 1) // 2 if crop > width else 0,
                (crop - height + 1) // 2 if crop > height else 0,
            ),
            fill=0,
        )
        width, height = image.size
    top, left = round((height - crop) / 2.0), round((width - crop) / 2.0)
    image = image.crop((left, top, left + crop, top + crop))
    tensor = np.asarray(image).transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    return (tensor - MEAN[:, None, None]) / STD[:, None, None]


def paddleclas(image: Image.Image, resize_short: int, crop: int) -> Array:
    """ResizeImage, CropImage, NormalizeImage(order=''), ToCHWImage: as PaddleClas's operators have them."""
    pixels = np.asarray(image)
    height, width = pixels.shape[:2]
    percent = float(resize_short) / min(width, height)
    size = round(width * percent), round(height * percent)
    pixels = cv2.resize(pixels, size)
    height, width = pixels.shape[:2]
    left, top = (width - crop) // 2, (height - crop) // 2
    pixels = pixels[top : top + crop, left : left + crop]
    values = (pixels.astype("float32") * np.float32(1.0 / 255.0) - MEAN) / STD
    return values.transpose(2, 0, 1)


@EACH_SIZE
def test_torchvision_s_evaluation_transform_exactly(size: tuple[int, int]) -> None:
    image = photo(*size)
    expected = torchvision(image, 256, 224, Image.Resampling.BILINEAR)
    assert np.array_equal(
        read(get_recording_path(image), feed_of(3, 224, 224), preset="torchvision"), expected
    )


def test_torchvision_with_other_sides_as_its_newer_weights_have_them() -> None:
    image = photo(640, 427)
    expected = torchvision(image, 232, 224, Image.Resampling.BILINEAR)
    assert np.array_equal(read(get_recording_path(image), feed_of(3, -1, -1), resize=232), expected)
    expected = torchvision(image, 384, 384, Image.Resampling.BILINEAR)
    assert np.array_equal(read(get_recording_path(image), feed_of(3, 384, 384), resize=384), expected)
    expected = torchvision(image, 40, 64, Image.Resampling.BILINEAR)  # black around what is smaller
    assert np.array_equal(read(get_recording_path(image), feed_of(3, -1, -1), resize=40, crop=64), expected)


@EACH_SIZE
def test_timm_s_evaluation_transform_exactly(size: tuple[int, int]) -> None:
    image = photo(*size)
    for side in (224, 299):
        expected = torchvision(image, math.floor(side / 0.875), side, Image.Resampling.BICUBIC)
        assert np.array_equal(
            read(get_recording_path(image), feed_of(3, side, side), preset="timm"), expected
        )


@EACH_SIZE
def test_paddleclas_s_evaluation_transform_to_the_last_bits(size: tuple[int, int]) -> None:
    image = photo(*size)
    expected = paddleclas(image, 256, 224)
    made = read(get_recording_path(image), feed_of(3, 224, 224), preset="paddle")
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-6)


def test_plain_resizes_both_sides_and_ends_at_1() -> None:
    image = photo(57, 91, "L")
    expected = np.asarray(image.resize((28, 28), Image.Resampling.BILINEAR))[None] / np.float32(255)
    made = read(get_recording_path(image), feed_of(1, 28, 28), preset="plain")
    assert np.array_equal(made, expected.astype(np.float32))
    assert read(get_recording_path(image), feed_of(1, -1, -1), preset="plain").shape == (1, 91, 57)


def test_channels_and_layout_are_the_feed_s() -> None:
    image = photo(64, 64)
    rgb = read(get_recording_path(image), feed_of(3, 64, 64), preset="plain")
    assert np.array_equal(
        read(get_recording_path(image), feed_of(64, 64, 3), preset="plain"), rgb.transpose(1, 2, 0)
    )
    assert np.array_equal(
        read(get_recording_path(image), feed_of(3, 64, 64), preset="plain", channels="bgr"), rgb[::-1]
    )
    whole = read(
        get_recording_path(image), feed_of(64, 64, 3, dtype="uint8"), preset="torchvision", resize=64
    )
    assert whole.dtype == np.uint8 and np.array_equal(whole, np.asarray(image))


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA"])
def test_other_kinds_of_pixels_become_colours_as_pillow_converts_them(mode: str) -> None:
    image = photo(80, 60, mode)
    file = get_recording_path(image, "JPEG" if mode == "CMYK" else "PNG")
    shown = Image.open(io.BytesIO(file)).convert("RGB")
    made = read(file, feed_of(60, 80, 3, dtype="uint8"), preset="plain")
    assert np.array_equal(made, np.asarray(shown))


def test_a_photo_is_turned_upright_unless_it_is_told_to_lie() -> None:
    image = photo(64, 48)
    feed = feed_of(-1, -1, 3, dtype="uint8")
    assert np.array_equal(read(held_sideways(image), feed, preset="plain"), np.asarray(image))
    lying = read(held_sideways(image), feed, preset="plain", orientation="stored")
    assert lying.shape == (64, 48, 3)
