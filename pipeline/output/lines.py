"""What a process writes to descriptor 1 or 2, in lines: each bounded, of the level that it seems to have."""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Iterator

LINE_CHARS = 1000  # a longer line becomes several: a pipe takes 4 KB at once, so that none is torn apart

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
    """The lines of one pipe: what is written is added, and comes out as lines without their end."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def add(self, data: bytes) -> Iterator[str]:
        *whole, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        for line in whole:
            yield from _pieces(line)
        if len(self._rest) > LINE_CHARS:
            cut = len(self._rest) // LINE_CHARS * LINE_CHARS
            begun, self._rest = self._rest[:cut], self._rest[cut:]
            yield from _pieces(begun)

    def end(self) -> Iterator[str]:
        """What came after the last end of a line."""
        yield from _pieces(self._rest + self._decoder.decode(b"", final=True))
        self._rest = ""


def _pieces(line: str) -> Iterator[str]:
    """A line in pieces of LINE_CHARS. Of what a progress bar has written over itself the last is left."""
    shown = line.rstrip("\r").rpartition("\r")[2]
    for start in range(0, len(shown), LINE_CHARS):
        piece = shown[start : start + LINE_CHARS]
        if not piece.isspace():
            yield piece


def guess_level(text: str, stream: str) -> int:
    """The level that a line seems to have; without a sign of one INFO on `stdout`, WARNING on `stderr`."""
    if found := _LETTER.match(text):
        return _LETTERS[found[1] or found[2]]
    if _CRASH.search(text):
        return logging.CRITICAL
    if found := _WORD.match(text):
        return logging.getLevelNamesMapping()[found[1].upper()]
    if "Warning: " in text:  # of Python: "app.py:3: UserWarning: ..."
        return logging.WARNING
    return logging.INFO if stream == "stdout" else logging.WARNING
