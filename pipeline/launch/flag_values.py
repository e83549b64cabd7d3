"""The values of Triton's flags: how each kind of value is shown in --help, and how it is parsed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.api.buckets import Bucket, parse_bucket
from pipeline.api.header_patterns import compile_pattern
from pipeline.errors import ConfigError


class Kind(NamedTuple):
    """The kind of value that a command-line flag takes."""

    shown: str  # in --help and in the table of flags
    parse: Callable[[str], Any]  # raises argparse.ArgumentTypeError
    settings: Mapping[str, Any] = {}  # further arguments of argparse's `add_argument`


_BUCKETS = {"gs": "gcloud storage rsync", "as": "az storage blob download-batch"}
_MAX_PORT = 65535


def repository_folder(text: str) -> Path | Bucket:
    """Parse the path of a Triton model repository: a folder or an S3 URL.

    Raises argparse's error for other kinds of buckets.
    """
    scheme, separator, _ = text.partition("://")
    if separator and scheme == "s3":
        try:
            return parse_bucket(text)
        except ConfigError as exc:
            raise argparse.ArgumentTypeError(exc.message) from None
    if separator and scheme in _BUCKETS:
        raise argparse.ArgumentTypeError(
            f"{text} is in a bucket, which is not read here: copy it to a folder ({_BUCKETS[scheme]}), and "
            "name that"
        )
    return Path(text)


def parse_bool(text: str) -> bool:
    """Parse a boolean flag as Triton does: true, false, 1, 0, on or off.

    Raises argparse's error for other texts.
    """
    lowered = text.lower()
    if lowered not in ("true", "false", "1", "0", "on", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return lowered in ("true", "1", "on")


def _parse_verbosity(text: str) -> int:
    """Parse --log-verbose, which Triton takes as a number or as true or false."""
    lowered = text.lower()
    return int(lowered == "true") if lowered in ("true", "false") else _parse_whole(text)


def _parse_whole(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def _parse_positive(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _parse_port(text: str) -> int:
    if not re.fullmatch(r"\d{1,5}", text, re.ASCII) or not 0 < int(text) <= _MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is no port, which is a number from 1 to {_MAX_PORT}")
    return int(text)


def _parse_pattern(text: str) -> str:
    try:
        compile_pattern(text)
    except re.error as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {exc}") from None
    return text


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None


def _written(shown: str, pattern: str) -> Kind:
    """Return a kind of flag values: texts that match a regular expression.

    shown: the form of the texts, for --help and errors.
    """

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{text!r} is not of the form {shown}")
        return text

    return Kind(shown, parse)


def choice(*names: str) -> Kind:
    """Return a kind of flag values: one of these lower-case names, which may be written in any case."""
    return Kind("|".join(names), str.lower, {"choices": names})


TEXT = Kind("TEXT", str)
NAME = Kind("NAME", str)
ADDRESS = Kind("ADDRESS", str)
FILE = Kind("FILE", Path)
FOLDER = Kind("DIR", Path)
REPOSITORY = Kind("DIR", repository_folder)
BOOL = Kind("BOOL", parse_bool, {"nargs": "?", "const": True})  # the flag alone means true
PORT = Kind("PORT", _parse_port)
COUNT = Kind("COUNT", _parse_whole)
BYTES = Kind("BYTES", _parse_whole)
POSITIVE_BYTES = Kind("BYTES", _parse_positive)
SECONDS = Kind("SECONDS", _parse_whole)
MILLISECONDS = Kind("MS", _parse_number)
NUMBER = Kind("NUMBER", _parse_number)
VERBOSITY = Kind("LEVEL", _parse_verbosity)
PATTERN = Kind("REGEX", _parse_pattern)
TRACE_LEVEL = choice("off", "timestamps", "tensors", "min", "max", "on", "true", "false")
RESTRICTION = Kind("API,API:KEY=VALUE", str)
SETTING = _written("NAME,KEY=VALUE", r"[^,]+,[^=]+=.+")
MODE_SETTING = _written("[MODE,]KEY=VALUE", r"([^,=]+,)?[^,=]+=.+")
METRICS_SETTING = Kind("KEY=VALUE", str)
BACKEND_SETTING = Kind("BACKEND,NAME=VALUE", str)
RESOURCE = _written("NAME:COUNT[:DEVICE]", r"[^:]+:[0-9]{1,9}(:[0-9]{1,9})?")
DEVICE_BYTES = _written("DEVICE:BYTES", r"\d+:\d+")
DEVICE_SHARE = _written("DEVICE:SHARE", r"\d+:\d*\.?\d+")
PORT_RANGE = _written("PORT-PORT", r"\d+-\d+")
