"""The terminal streams of a conversion, without the lines of the libraries that it calls."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import NamedTuple, TextIO

_OURS = ("pipeline", "convert")


class Streams(NamedTuple):
    """Standard output and standard error of our own lines."""

    out: TextIO
    err: TextIO


def process_streams() -> Streams:
    return Streams(sys.stdout, sys.stderr)


@contextlib.contextmanager
def silence_libraries() -> Iterator[Streams]:
    """Yield streams for our own lines; drop everything else that native code or Python writes meanwhile.

    A crash in native code still prints its place to standard error.
    """
    streams = Streams(*(os.fdopen(os.dup(fd), "w", 1) for fd in (1, 2)))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(nowhere, fd)
    os.close(nowhere)
    faulthandler.enable(streams.err)
    handler = logging.StreamHandler(streams.err)
    handler.setLevel(logging.WARNING)
    for name in _OURS:
        logging.getLogger(name).addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield streams
    finally:
        for fd, stream in zip((1, 2), streams, strict=True):
            stream.flush()
            os.dup2(stream.fileno(), fd)  # for a traceback
