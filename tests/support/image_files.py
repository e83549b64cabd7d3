"""Image files, made here."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

ORIENTATION = 0x0112  # the EXIF tag that says how the camera was held


def photo(width: int, height: int, mode: str = "RGB", seed: int = 1) -> Image.Image:
    """Soft colours with some noise, so that a resampled pixel tells how it was made."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    bands = [columns * 255 / width, rows * 255 / height, (rows + columns) * 127 / (width + height)]
    pixels = np.stack(bands, -1) + random.integers(-40, 40, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert(mode)


def get_recording_path(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The bytes of the image as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def held_sideways(image: Image.Image) -> bytes:
    """A file whose pixels lie on their side, and which says so."""
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    return get_recording_path(image.transpose(Image.Transpose.ROTATE_90), exif=exif)


def png_that_says(width: int, height: int) -> bytes:
    """A PNG of so many pixels by its first lines, of which it has few."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
