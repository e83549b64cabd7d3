"""Which lines a conversion shows: its own, and with --debug those of the libraries that it calls."""

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
    """Standard output and standard error as our own lines find them."""

    out: TextIO
    err: TextIO


def as_they_are() -> Streams:
    return Streams(sys.stdout, sys.stderr)


@contextlib.contextmanager
def without_libraries() -> Iterator[Streams]:
    """Streams for our own lines; what else is written meanwhile, natively or by Python, is left out.

    A crash in native code still tells on standard error where it was.
    """
    streams = Streams(*(os.fdopen(os.dup(fd), "w", 1) for fd in (1, 2)))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(nowhere, fd)
    os.close(nowhere)
    faulthandler.enable(streams.err)
    told = logging.StreamHandler(streams.err)
    told.setLevel(logging.WARNING)
    for name in _OURS:
        logging.getLogger(name).addHandler(told)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield streams
    finally:
        for fd, stream in zip((1, 2), streams, strict=True):
            stream.flush()
            os.dup2(stream.fileno(), fd)  # for a traceback
