"""What an HTTP body is that is no JSON: an input as a whole, an image or CSV say, or what nothing takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.http_handler import header

IMAGE = "image/*"
# What curl and others send where nobody names a media type: then the body itself tells what it is.
_UNTOLD = ("", "application/octet-stream", "application/x-www-form-urlencoded")
_KINDS = {  # by their first bytes
    b"\xff\xd8\xff": ("image/jpeg", "a JPEG image"),
    b"\x89PNG": ("image/png", "a PNG image"),
    b"GIF8": ("image/gif", "a GIF image"),
    b"RIFF": ("image/webp", "a RIFF file, a WebP image say"),
    b"BM": ("image/bmp", "a BMP image"),
    b"%PDF": ("application/pdf", "a PDF"),
    b"PK\x03\x04": ("application/zip", "a ZIP archive"),
    b"\x1f\x8b": ("application/gzip", "compressed by gzip"),
    b"\x93NUMPY": ("application/x-npy", "a .npy file"),
}


def raw_input(request: HttpRequest, raw_bodies: Mapping[str, str]) -> dict[str, Any] | None:
    """The body under the input's name; None where it is for the dialect to read.

    raw_bodies: by media type the names of inputs, see `App`.
    """
    if not raw_bodies:
        return None
    media = header(request, b"content-type").partition(";")[0].strip().lower()
    if media in _UNTOLD:
        media, _ = _sniff_media_type(request.body) or (media, "")
    name = raw_bodies.get(media) or raw_bodies.get(f"{media.partition('/')[0]}/*")
    return None if name is None else {name: request.body}


def other_kind(body: bytes) -> str:
    """What a body is that can be told to be no JSON: an image, say; empty for any other."""
    _, told = _sniff_media_type(body) or ("", "")
    return told


def _sniff_media_type(body: bytes) -> tuple[str, str] | None:
    return next((kind for start, kind in _KINDS.items() if body.startswith(start)), None)
