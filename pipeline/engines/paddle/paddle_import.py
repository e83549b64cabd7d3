"""Imports Paddle without its side effects: log lines, spinning threads, warnings and signal handlers."""

from __future__ import annotations

import re
import signal
import threading
import warnings

from pipeline.engines.refusals import OutOfRange
from pipeline.process import environment

environment.set_variables()

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # among others, advice to install ccache
    import paddle
    from paddle import inference

__all__ = ["inference", "paddle"]


def _restore_sigterm() -> None:
    """Restore SIGTERM's handler, which importing Paddle replaces in C, even if the signal is ignored.

    Python still has the previous handler. Paddle's handlers for crashes are kept, because they print a
    traceback.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)


_restore_sigterm()


# The sentence of an error: "(InvalidArgument) ..." or "InvalidArgumentError: ...", after lines of preamble.
_SENTENCE = re.compile(r"^\s*(\([A-Z]\w+\) .+|\w+Error: .+)$", re.MULTILINE)
MAX_ERROR_CHARS = 400
# Message of the embedding operator; `end` is the first number beyond the table.
_OUT_OF_RANGE = re.compile(r"expected >= 0 and < (?P<end>\d+), but got (?P<value>-?\d+)")


def parse_out_of_range(exc: Exception) -> OutOfRange | None:
    """Return the index that a Paddle error reports as beyond a lookup table, with the limit; else None."""
    match = _OUT_OF_RANGE.search(str(exc))
    return match and OutOfRange(int(match["value"]), 0, int(match["end"]) - 1)


def error_sentence(exc: Exception) -> str:
    """Return the message of a Paddle exception without its hints and native traceback."""
    text = str(exc)
    match = _SENTENCE.search(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    sentence = match[1] if match else lines[0] if lines else type(exc).__name__
    return sentence[:MAX_ERROR_CHARS].strip()
