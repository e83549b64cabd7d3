"""LogQueue: lines on their way to one output, so that code that logs does not wait for the output."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
from collections.abc import Callable
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import Any

MOST_CHARS = 4 << 20  # more waits only where nobody reads, or the disk stands still
_RECORD_CHARS = 1000  # what a record takes besides its text


class LogQueue(QueueHandler):
    """Formats lines where they are logged, for a thread to write by the handler that `make_output` makes.

    Lines over MOST_CHARS are dropped, with all that follow until the thread has caught up. The thread then
    logs their number.

    patience_s: time that each line is waited for, unless the line before is still waited for. The code behind
    a line may crash in native code, or hold Python's lock and so keep the thread from writing. 0: no wait.
    """

    def __init__(self, make_output: Callable[[], logging.Handler], patience_s: float) -> None:
        # Not a Queue, which is not to be used in destructors: those of asyncio's tasks log.
        self._waiting: SimpleQueue[Any] = SimpleQueue()
        super().__init__(self._waiting)
        self.dropped = 0
        self._untold = 0
        self._chars = 0  # that were ever queued
        self._patience_s = patience_s
        self._awaited = threading.Event()
        self._awaited.set()
        self._make_output = make_output
        self._writer = _Writer(self, make_output())
        self._writer.start()
        self._is_fork = False
        os.register_at_fork(after_in_child=self._do_without_thread)

    def enqueue(self, record: logging.LogRecord) -> None:
        if self._is_fork:
            self._writer.handle(record)
            return
        if self._untold or self._chars - self._writer.chars > MOST_CHARS:
            self.dropped += 1
            self._untold += 1
            if self._untold == 1:
                self.mark()  # the thread, which may have written the last line just now, looks once more
            return
        self._chars += _count_chars(record)
        self.queue.put_nowait(record)
        if self._patience_s and self._awaited.is_set():
            self._awaited = self.mark()
            self._awaited.wait(self._patience_s)

    def mark(self) -> threading.Event:
        """Return an event that is set as soon as all lines so far are written."""
        mark = threading.Event()
        if self._is_fork:
            mark.set()
        else:
            self.queue.put_nowait(mark)
        return mark

    def told_dropped(self) -> logging.LogRecord | None:
        """Once all before is written: a line about what was dropped, if anything was. New ones are taken."""
        if not self._untold or not self._waiting.empty():
            return None
        self.acquire()
        count, self._untold = self._untold, 0
        self.release()
        return self.build_loss(count, "nobody read them, or the disk stood still")

    def build_loss(self, count: int, reason: str) -> logging.LogRecord:
        """Return a formatted line about the number of lines that the output lacks."""
        text = "%d log lines are missing here: %s"
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (count, reason), None)
        record.msg, record.args = self.format(record), None
        return record

    def _do_without_thread(self) -> None:
        """Write lines at once from now on: a child that a hook has forked is without the thread."""
        self._is_fork = True
        self._parents = self._writer  # not let go of: to close its file needs a lock that its thread may have
        self._writer = _Writer(self, self._make_output())


class StandardOutput(logging.Handler):
    """Writes to a service's standard output, whatever an app makes of `sys.stdout`.

    Unbuffered: a thread that waits for a reader in here holds no lock of a stream that is flushed at the end.
    """

    def __init__(self, fd: int, encoding: str) -> None:
        super().__init__()
        self._fd = fd
        self._encoding = encoding
        self._in_line = False  # whether the last line was written in part

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{chr(10) if self._in_line else ''}{self.format(record)}\n"
        try:
            line = memoryview(text.encode(self._encoding, "backslashreplace"))
            while line:
                line = line[os.write(self._fd, line) :]
                self._in_line = bool(line)
        except BrokenPipeError:  # its reader has gone: there is nobody to tell
            pass
        except Exception:
            self.handleError(record)


class LineFile(io.FileIO):
    """A log file that holds whole lines: a line that the disk has no room for is taken back."""

    def write(self, data: Any) -> int:
        """Write all of the data or nothing. Raises OSError."""
        start, rest = self.seek(0, os.SEEK_END) if self.seekable() else 0, memoryview(data)
        try:
            while rest:
                rest = rest[super().write(rest) or 0 :]
        except OSError:
            with contextlib.suppress(OSError):  # no regular file
                self.truncate(start)
            raise
        return len(data)


class _Writer(QueueListener):
    """Thread that writes the lines. On a full disk it drops them, reports that once, and goes on trying.

    chars: number of characters that it has written.
    """

    def __init__(self, lines: LogQueue, output: logging.Handler) -> None:
        super().__init__(lines.queue, output)
        self._lines = lines
        self.chars = 0
        self._output = output
        self._error: OSError | None = None  # of the line that is being written
        self._lost = 0  # lines since the output could last be written
        output.handleError = self._handle_error  # type: ignore[method-assign]

    def handle(self, record: logging.LogRecord | threading.Event) -> None:
        if isinstance(record, logging.LogRecord):
            self._write(record)
            self.chars += _count_chars(record)
        if (record_of_loss := self._lines.told_dropped()) is not None:
            self._write(record_of_loss)
        if isinstance(record, threading.Event):
            record.set()

    def _write(self, record: logging.LogRecord) -> None:
        if self._lost and self._succeeds(self._lines.build_loss(self._lost, "they could not be written")):
            self._lost = 0
        if self._lost or not self._succeeds(record):
            self._lost += 1
            self._lines.dropped += 1
            if self._lost == 1:
                self._report()

    def _succeeds(self, record: logging.LogRecord) -> bool:
        self._error = None
        super().handle(record)
        return self._error is None

    def _handle_error(self, record: logging.LogRecord) -> None:
        """Note that the disk takes no line; report other errors as logging does."""
        error = sys.exception()
        if isinstance(error, OSError):
            self._error = error
        else:
            logging.Handler.handleError(self._output, record)

    def _report(self) -> None:
        """Say once on standard error that lines are dropped: the log itself can't say it."""
        name = getattr(self._output, "baseFilename", "standard output")
        text = f"The log can't be written to {name}, and its lines are dropped until it can: {self._error}\n"
        with contextlib.suppress(OSError):
            os.write(2, text.encode("utf-8", "backslashreplace"))


def _count_chars(record: logging.LogRecord) -> int:
    return len(record.msg) + _RECORD_CHARS
