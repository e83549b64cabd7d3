"""LogQueue: lines on their way to one output, so that code that logs does not wait for the output."""

from __future__ import annotations

import logging
import os
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
        text = "%d log lines are missing here: nobody read them, or the disk stood still"
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (count,), None)
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

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = memoryview(f"{self.format(record)}\n".encode(self._encoding, "backslashreplace"))
            while line:
                line = line[os.write(self._fd, line) :]
        except BrokenPipeError:  # its reader has gone: there is nobody to tell
            pass
        except Exception:
            self.handleError(record)


class _Writer(QueueListener):
    """Thread that writes the lines.

    chars: number of characters that it has written.
    """

    def __init__(self, lines: LogQueue, output: logging.Handler) -> None:
        super().__init__(lines.queue, output)
        self._lines = lines
        self.chars = 0

    def handle(self, record: logging.LogRecord | threading.Event) -> None:
        if isinstance(record, logging.LogRecord):
            super().handle(record)
            self.chars += _count_chars(record)
        if (record_of_loss := self._lines.told_dropped()) is not None:
            super().handle(record_of_loss)
        if isinstance(record, threading.Event):
            record.set()


def _count_chars(record: logging.LogRecord) -> int:
    return len(record.msg) + _RECORD_CHARS
