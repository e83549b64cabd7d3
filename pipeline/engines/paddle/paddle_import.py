"""Imports Paddle quietly: native log, waiting threads, warnings and signal handlers are settled."""

from __future__ import annotations

import signal
import threading
import warnings

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
