"""Bodies of HTTP requests that are an input as a whole: an image or CSV, say, told by their media type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import MalformedBody
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.http_handler import header

IMAGE = "image/*"
# What curl and others send where nobody names a media type: then the body itself tells an image.
_UNTOLD = ("", "application/octet-stream", "application/x-www-form-urlencoded")
_IMAGES = {
    b"\xff\xd8\xff": "image/jpeg",
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
    b"BM": "image/bmp",
}


def raw_input(request: HttpRequest, raw_bodies: Mapping[str, str]) -> dict[str, Any] | None:
    """The body under the input's name; None where it is a document of the dialect.

    raw_bodies: by media type the names of inputs, see `App`. Raises MalformedBody for an image where none is
    taken.
    """
    media = header(request, b"content-type").partition(";")[0].strip().lower()
    if media in _UNTOLD:
        media = next((kind for magic, kind in _IMAGES.items() if request.body.startswith(magic)), media)
    name = raw_bodies.get(media) or raw_bodies.get(f"{media.partition('/')[0]}/*")
    if name is not None:
        return {name: request.body}
    if media.startswith("image/"):
        taken = ", ".join(("application/json", *raw_bodies))
        raise MalformedBody(f"the body is {media}, and the service takes {taken}")
    return None
