"""Signal handling during the start of a service: SIGHUP does not kill it, Ctrl-C ends it with one line.

The handlers are installed by the first service that a script makes, or by `paddlewheel run` before the
script's first line. Imports of the script before run under Python's own handlers: importing changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType

INTERRUPTED = 130  # the status of what SIGINT ended, as a shell has it
TOLD = "Interrupted before the service was ready"


def end_plainly() -> None:
    """Make Ctrl-C end this script with a one-line message, unless the script has its own `sys.excepthook`.

    SIGTERM then ends the script also as process 1 of a container, which would otherwise ignore the signal.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _log_uncaught
    in_thread = threading.current_thread() is not threading.main_thread()
    if in_thread or os.getpid() != 1 or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))


def _log_uncaught(kind: type[BaseException], exc: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write(f"{TOLD}\n")
    elif issubclass(kind, ImportError) and _came_of_interrupt(exc):
        _leave(signal.SIGINT, None)
    else:
        sys.__excepthook__(kind, exc, trace)


def _came_of_interrupt(exc: BaseException | None) -> bool:
    """Whether a KeyboardInterrupt inside a C library is among the causes of an exception."""
    while exc is not None and not isinstance(exc, KeyboardInterrupt):
        exc = exc.__cause__
    return exc is not None


@contextlib.contextmanager
def left_at_once() -> Iterator[None]:
    """Context manager: make Ctrl-C end the process at once, without a KeyboardInterrupt.

    C libraries turn a KeyboardInterrupt into other errors.
    """
    in_thread = threading.current_thread() is not threading.main_thread()
    if in_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, _: FrameType | None) -> None:
    os.write(2, f"{TOLD}\n".encode())
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def survive_hangups() -> None:
    """Ignore SIGHUP from now on, except when the terminal is closed: then the process ends as usual.

    A running service reloads its files at SIGHUP. A starting service has not read them yet.
    """
    in_thread = threading.current_thread() is not threading.main_thread()
    if in_thread or signal.getsignal(signal.SIGHUP) != signal.SIG_DFL:
        return
    had_terminal = has_terminal()

    def handle_hangup(number: int, _: FrameType | None) -> None:
        if had_terminal and not has_terminal():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    signal.signal(signal.SIGHUP, handle_hangup)


def hold() -> None:
    """Block SIGHUP, SIGINT and SIGTERM until `release`, also in the program that replaces this one by exec.

    Until exec, a library's thread may still receive these signals, because signal masks are per thread.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def release() -> None:
    """Unblock the signals that `hold` blocked, now that there are handlers for them."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)


def has_terminal() -> bool:
    """Whether this process has a controlling terminal.

    The kernel sends SIGHUP when that terminal is closed.
    """
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


_HELD = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
