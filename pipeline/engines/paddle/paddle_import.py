"""Imports Paddle quietly: native log, waiting threads, warnings and signal handlers are settled."""

from __future__ import annotations

import re
import signal
import threading
import warnings

from pipeline.engines.refusals import Beyond
from pipeline.process import environment

environment.settle()

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # among others, advice to install ccache
    import paddle
    from paddle import inference

__all__ = ["inference", "paddle"]


def _restore_sigterm() -> None:
    """Paddle's import replaces the disposition of SIGTERM in C, even where the process ignores the signal.

    Python still knows what was set. Paddle's handlers for SIGSEGV and the like stay: their traceback helps.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)


_restore_sigterm()


# The sentence of an error: "(InvalidArgument) ..." or "InvalidArgumentError: ...", after lines of preamble.
_SENTENCE = re.compile(r"^\s*(\([A-Z]\w+\) .+|\w+Error: .+)$", re.MULTILINE)
MAX_ERROR_CHARS = 400
# Of embedding; the end is the first number that the table lacks.
_BEYOND = re.compile(r"expected >= 0 and < (?P<end>\d+), but got (?P<given>-?\d+)")


def looked_up(exc: Exception) -> Beyond | None:
    """The number that a run looked up in vain; None where it failed of something else."""
    found = _BEYOND.search(str(exc))
    return found and Beyond(int(found["given"]), 0, int(found["end"]) - 1)


def error_sentence(exc: Exception) -> str:
    """Paddle's own sentence out of an error that comes with hints and a native traceback."""
    text = str(exc)
    match = _SENTENCE.search(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    sentence = match[1] if match else lines[0] if lines else type(exc).__name__
    return sentence[:MAX_ERROR_CHARS].strip()
