"""Image preprocessing: decodes the images of a request, resizes, crops and normalizes them for the model.

The arithmetic is that of the library that a preset names: torchvision's resize, crop and normalize over
Pillow, PaddleClas's over OpenCV. Pillow is imported when a reader is made: in a worker.
"""

from __future__ import annotations

import binascii
import io
import json
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.errors import ConfigError, InvalidInput, TooLarge
from pipeline.models.description import ImageInput
from pipeline.models.signature import Variable

if TYPE_CHECKING:
    from PIL.Image import Image


_WEIGHT_BITS = 11


def opencv_resize(pixels: Array, height: int, width: int) -> Array:
    """Resize an image like OpenCV's bilinear `resize`: uint8 [height, width, channels] to the given size."""
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
    """Return, for each target pixel along an axis, its two source pixels and their weights (fixed point).

    cut: beyond the first and the last source pixel, the nearest source pixel gets all the weight.
    """
    at = ((np.arange(target) + 0.5) * (source / target) - 0.5).astype(np.float32)
    first = np.floor(at).astype(np.int64)
    share = at - first.astype(np.float32)
    if cut:
        share[(first < 0) | (first >= source - 1)] = 0
    unit = 1 << _WEIGHT_BITS
    of_first, of_next = (np.rint(part * unit).astype(np.int32) for part in (np.float32(1) - share, share))
    return first.clip(0, source - 1), (first + 1).clip(0, source - 1), of_first, of_next


Array = np.ndarray[Any, np.dtype[Any]]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")  # the others' decoders are rarely asked for, and less proven
MISSING = "images are decoded by Pillow, which is not installed here: pip install 'paddlewheel[images]'"
_CONTROL = set(range(32)) - set(b"\t\r\n")
_HEAD = 64  # bytes in which every format has one that no text has
_MODES = {"rgb": "RGB", "bgr": "RGB", "grey": "L"}


class ImageReader:
    """Turns the images of one request input into an input tensor of the model."""

    def __init__(self, name: str, settings: ImageInput, feed: Variable) -> None:
        """`name` is the input's name in requests, `feed` the model's input.

        Raises ConfigError without Pillow.
        """
        try:
            from PIL import Image
        except ImportError as exc:
            raise ConfigError(MISSING) from exc
        # It warns of what `max_pixels` allows, once in each process; more than that is refused here.
        warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
        self._name = name
        self._given = settings
        self._dtype = feed.numpy_dtype

    def read_images(self, inputs: Mapping[str, Any]) -> Array:
        """Return the model's input array, with a row for each image of the request.

        Raises InvalidInput and TooLarge, which name the image by its number.
        """
        if self._name not in inputs:
            raise InvalidInput(
                f"{self._name!r} is missing: send an image ({', '.join(FORMATS)}) as base64, or its bytes as "
                "the body, with its content-type"
            )
        files = _files(inputs[self._name], self._name)
        rows = [self._decode_row(data, where) for data, where in files]
        if len({row.shape for row in rows}) > 1:
            raise InvalidInput(
                f"the images of {self._name!r} differ in size; send them in requests of their own"
            )
        return np.stack(rows)

    def _decode_row(self, data: bytes, where: str) -> Array:
        settings = self._given
        image = decoded(data, where, settings)
        pixels = cropped(resized(image, settings), settings)
        if settings.channels == "bgr":
            pixels = pixels[:, :, ::-1]
        values = self._normalised(pixels)
        return np.ascontiguousarray(values.transpose(2, 0, 1) if settings.layout == "nchw" else values)

    def _normalised(self, pixels: Array) -> Array:
        if self._dtype.kind != "f":
            return pixels.astype(self._dtype)
        # Each step is rounded to float32, as torchvision's tensors are.
        values = pixels.astype(np.float32) / np.float32(self._given.divisor)
        values -= np.array(self._given.mean, np.float32)
        values /= np.array(self._given.std, np.float32)
        return values.astype(self._dtype, copy=False)


def decoded(data: bytes, where: str, settings: ImageInput) -> Image:
    """Decode an image file into a Pillow image of the model's color mode.

    `where` names the image in errors. The image is turned upright by its EXIF data if `orientation` is
    "exif". Raises InvalidInput for broken files and unknown formats, and TooLarge.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            _refuse_large(opened.width, opened.height, where, settings)
            image: Image.Image = opened.convert(_MODES[str(settings.channels)])
            return _upright(image) if settings.orientation == "exif" else image
    except Image.DecompressionBombError as exc:
        raise TooLarge(f"{where} is too large to be decoded ({exc}): send a smaller one") from None
    except UnidentifiedImageError:
        raise InvalidInput(f"{where} is no image: send one of {', '.join(FORMATS)}") from None
    except (OSError, ValueError, SyntaxError, EOFError, OverflowError, MemoryError) as exc:
        # Pillow's decoders raise each of these for a broken file.
        raise InvalidInput(f"{where} is a broken image ({exc}): send it whole") from None


def _refuse_large(width: int, height: int, where: str, settings: ImageInput) -> None:
    """Raise TooLarge for an image with more than `max_pixels` pixels, before or after resizing.

    Resizing the shorter side would turn an image of 1 x 100000 pixels into 256 x 25600000 pixels.
    """
    limit = f"{settings.max_pixels} are allowed (max_pixels in serving.yml): send a smaller one"
    if width * height > settings.max_pixels:
        raise TooLarge(f"{where} has {width} x {height} pixels; {limit}")
    if settings.resize is None or len(settings.resize) != 1 or not width * height:
        return
    rows, columns = _target(height, width, settings)
    if rows * columns > max(settings.max_pixels, width * height):
        raise TooLarge(
            f"{where} has {width} x {height} pixels, which are {columns} x {rows} with a shorter side of "
            f"{settings.resize[0]}; {limit}"
        )


def resized(image: Image, settings: ImageInput) -> Array:
    """Resize an image by its shorter side or both sides, as the setting `resize` says.

    Returns uint8 [height, width, channels].
    """
    width, height = image.size
    if settings.resize is not None:
        height, width = _target(height, width, settings)
    if settings.library == "opencv":
        pixels = _pixels(image)
        return pixels if pixels.shape[:2] == (height, width) else opencv_resize(pixels, height, width)
    if (width, height) != image.size:
        from PIL import Image as pillow

        image = image.resize((width, height), pillow.Resampling[str(settings.resampling).upper()])
    return _pixels(image)


def cropped(pixels: Array, settings: ImageInput) -> Array:
    """Crop the center of an image, in the size of the setting `crop`.

    A smaller image gets a black border.
    """
    crop = settings.crop
    if crop is None:
        return pixels
    lacking = [max(0, side - length) for side, length in zip(crop, pixels.shape[:2], strict=True)]
    if any(lacking):
        pixels = np.pad(pixels, [*((lack // 2, (lack + 1) // 2) for lack in lacking), (0, 0)])
    left_over = [length - side for length, side in zip(pixels.shape[:2], crop, strict=True)]
    # Where the middle is between two pixels, torchvision takes the even one and PaddleClas the first.
    top, start = (odd // 2 if settings.library == "opencv" else round(odd / 2) for odd in left_over)
    return pixels[top : top + crop[0], start : start + crop[1]]


def _target(height: int, width: int, settings: ImageInput) -> tuple[int, int]:
    assert settings.resize is not None
    if len(settings.resize) == 2:
        return settings.resize[0], settings.resize[1]
    shorter, (short, long) = settings.resize[0], sorted((height, width))
    # torchvision cuts off what PaddleClas rounds.
    longer = round(long * (shorter / short)) if settings.library == "opencv" else int(shorter * long / short)
    return (shorter, longer) if height <= width else (longer, shorter)


def _pixels(image: Image) -> Array:
    pixels = np.asarray(image, np.uint8)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _upright(image: Image) -> Image:
    """Rotate an image as its EXIF data says. The image is unchanged if the EXIF data is broken."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except (OSError, ValueError, SyntaxError, KeyError, TypeError, ZeroDivisionError):
        return image


def _files(value: Any, name: str) -> list[tuple[bytes, str]]:
    """Return the file content of each image in a request value, with a name for the image in errors."""
    if isinstance(value, np.ndarray):
        values = value.ravel().tolist()
    elif isinstance(value, str) and value.lstrip().startswith("["):
        values = _of_json(value, name)
    else:
        values = value if isinstance(value, list) else [value]
    if not values:
        raise InvalidInput(f"{name!r} has no image")
    alone = len(values) == 1
    places = [repr(name) if alone else f"image {number} of {name!r}" for number in range(len(values))]
    return [(_bytes(image, where), where) for image, where in zip(values, places, strict=True)]


def _of_json(text: str, name: str) -> list[Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInput(f"{name!r} is neither base64 nor a JSON list of such texts") from None
    return values if isinstance(values, list) else [values]


def _bytes(value: Any, where: str) -> bytes:
    """Return the file content of an image sent as bytes, base64, or a data URL (`data:image/png;base64,`)."""
    if isinstance(value, str):
        value = value.encode()
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidInput(f"{where} is a {type(value).__name__}; send an image as base64")
    data = bytes(value)
    if _CONTROL & set(data[:_HEAD]) or not data[:_HEAD].isascii():
        return data
    if data.startswith(b"data:"):
        data = data.partition(b",")[2]
    try:
        return binascii.a2b_base64(b"".join(data.split()), strict_mode=True)
    except binascii.Error as exc:
        raise InvalidInput(f"{where} is no base64 ({exc}), nor the bytes of an image") from None
