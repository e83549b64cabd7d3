"""Image preprocessing presets: the evaluation transforms of torchvision, PaddleClas and timm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import ConfigError
from pipeline.models.signature import Variable

COLOURS = {"rgb": 3, "bgr": 3, "grey": 1}
_USUAL_SIDE = 224  # of a feed with open sides
_CROPPED_SHARE = 0.875  # of the shorter side: 224 of 256
_IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "torchvision": {"resampling": "bilinear", "library": "pillow", **_IMAGENET},
    "paddle": {"resampling": "bilinear", "library": "opencv", **_IMAGENET},
    "timm": {"resampling": "bicubic", "library": "pillow", **_IMAGENET},
    "plain": {"resampling": "bilinear", "library": "pillow", "mean": [0.0], "std": [1.0]},
}


def completed(preset: str, settings: Mapping[str, Any], feed: Variable, where: str) -> dict[str, Any]:
    """Complete the settings of an image from its preset and feed. Raises ConfigError."""
    if len(feed.shape) != 4 or feed.dtype in ("string", "bool"):
        raise ConfigError(
            f"{where}: an image is for a feed [N,C,H,W] or [N,H,W,C]; {feed.alias} takes {feed.dtype} "
            f"{list(feed.shape)}"
        )
    layout, colours = _layout(settings.get("layout"), settings.get("channels"), feed, where)
    sides = list(feed.shape[2:] if layout == "nchw" else feed.shape[1:3])
    filled = {**_PRESETS[preset], "layout": layout, "channels": colours}
    if preset == "plain":
        filled["resize"] = sides if -1 not in sides else None
    else:
        crop = _pair(settings.get("crop")) or [_USUAL_SIDE if side == -1 else side for side in sides]
        filled["crop"] = crop
        filled["resize"] = [_shorter_side(preset, min(crop))]
    filled |= {name: value for name, value in settings.items() if value is not None}
    filled["crop"] = _pair(filled.get("crop"))
    _check(filled, feed, where)
    return filled


def _shorter_side(preset: str, crop: int) -> int:
    """Return the shorter side of an image before its middle is cropped."""
    share = crop / _CROPPED_SHARE
    return math.floor(share) if preset == "timm" else round(share)


def _layout(layout: str | None, colours: str | None, feed: Variable, where: str) -> tuple[str, str]:
    first, last = feed.shape[1], feed.shape[3]
    if layout is None:
        channel_counts = (1, 3)
        if (first in channel_counts) is (last in channel_counts):
            raise ConfigError(
                f"{where}: {feed.alias} takes {list(feed.shape)}, which does not tell where the channels "
                "are; set layout to nchw or nhwc"
            )
        layout = "nchw" if first in channel_counts else "nhwc"
    count = first if layout == "nchw" else last
    return layout, colours or ("grey" if count == 1 else "rgb")


def _check(filled: Mapping[str, Any], feed: Variable, where: str) -> None:
    number = COLOURS[filled["channels"]]
    count = feed.shape[1] if filled["layout"] == "nchw" else feed.shape[3]
    if count not in (-1, number):
        raise ConfigError(
            f"{where}: {filled['channels']} has {number} channels, {feed.alias} takes {list(feed.shape)}"
        )
    for name in ("mean", "std"):
        if len(filled[name]) not in (1, number):
            raise ConfigError(f"{where}.{name}: {len(filled[name])} numbers for {number} channels")
    if 0 in filled["std"]:
        raise ConfigError(f"{where}.std: nothing can be divided by 0")
    if filled["library"] == "opencv" and filled["resampling"] != "bilinear":
        raise ConfigError(f"{where}: library: opencv goes with resampling: bilinear alone")


def _pair(sides: Sequence[int] | None) -> list[int] | None:
    """Return both sides of a crop; a single side counts for both."""
    return None if sides is None else [sides[0], sides[-1]]
