"""Splits the output of a process into log lines of bounded length, and guesses their levels."""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Iterator

LINE_CHARS = 1000  # longer lines are split: a pipe writes up to 4 KB atomically, so lines never mix

_LETTERS = {
    "V": logging.DEBUG,
    "D": logging.DEBUG,
    "I": logging.INFO,
    "W": logging.WARNING,
    "E": logging.ERROR,
    "F": logging.CRITICAL,
}
# "W0413 12:00:00.1 ..." of glog and absl, "[W:onnxruntime:, ...]" of ONNX Runtime.
_LETTER = re.compile(r"^(?:([VDIWEF])\d{4} |.{0,40}\[([VIWEF]):onnxruntime)")
# "WARNING: ..." and "[ ERROR ] ..." at the beginning; a crash.
_WORD = re.compile(r"^\W{0,3}(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b", re.IGNORECASE)
_CRASH = re.compile(
    r"Fatal Python error|terminate called|FatalError|Segmentation fault|\bSIG(SEGV|ABRT|BUS|FPE)\b"
)


class Lines:
    """Splits the bytes of a pipe into lines, without line ends."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def add(self, data: bytes) -> Iterator[str]:
        *lines, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        for line in lines:
            yield from _split_line(line)
        if len(self._rest) > LINE_CHARS:
            cut = len(self._rest) // LINE_CHARS * LINE_CHARS
            begun, self._rest = self._rest[:cut], self._rest[cut:]
            yield from _split_line(begun)

    def end(self) -> Iterator[str]:
        """Yield the text after the last line end."""
        yield from _split_line(self._rest + self._decoder.decode(b"", final=True))
        self._rest = ""


def _split_line(line: str) -> Iterator[str]:
    """Split a line into pieces of LINE_CHARS. Only the last state of a progress bar is kept."""
    shown = line.rstrip("\r").rpartition("\r")[2]
    for start in range(0, len(shown), LINE_CHARS):
        piece = shown[start : start + LINE_CHARS]
        if not piece.isspace():
            yield piece


def guess_level(text: str, stream: str) -> int:
    """Guess the level of a line; without a hint, INFO on `stdout` and WARNING on `stderr`."""
    if match := _LETTER.match(text):
        return _LETTERS[match[1] or match[2]]
    if _CRASH.search(text):
        return logging.CRITICAL
    if match := _WORD.match(text):
        return logging.getLevelNamesMapping()[match[1].upper()]
    if "Warning: " in text:  # of Python: "app.py:3: UserWarning: ..."
        return logging.WARNING
    return logging.INFO if stream == "stdout" else logging.WARNING
