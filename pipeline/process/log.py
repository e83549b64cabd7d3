"""Logging of all processes of a service: one line per event, as text or JSON, to standard output and files.

A record may have an `origin`, the process that it is logged for, and `shown`, the origin as text lines show
it.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler, WatchedFileHandler
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.config.config_file import LoggingConfig


MAX_CHARS = 4 << 20  # more waits only where nobody reads, or the disk stands still
_RECORD_CHARS = 1000  # what a record takes besides its text


class LogQueue(QueueHandler):
    """A logging handler that formats records and hands them to a writer thread: logging rarely blocks.

    The thread writes with the handler that `make_output` creates. When over MAX_CHARS characters wait, lines
    are dropped until the thread has caught up; the thread then logs their number.

    patience_s: seconds to wait until each line is written, unless an earlier line still waits; 0: no wait.
    The wait is for lines before native code, which may crash, or hold the GIL and so keep the thread from
    writing.
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
        if self._untold or self._chars - self._writer.chars > MAX_CHARS:
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
        """Return an event that is set once all lines logged so far are written."""
        mark = threading.Event()
        if self._is_fork:
            mark.set()
        else:
            self.queue.put_nowait(mark)
        return mark

    def told_dropped(self) -> logging.LogRecord | None:
        """Return a log line with the number of dropped lines, and accept lines again.

        None if nothing was dropped. Also None while lines still wait to be written.
        """
        if not self._untold or not self._waiting.empty():
            return None
        self.acquire()
        count, self._untold = self._untold, 0
        self.release()
        return self.build_loss(count, "nobody read them, or the disk stood still")

    def build_loss(self, count: int, reason: str) -> logging.LogRecord:
        """Return a formatted log line that says how many lines are missing, and why."""
        text = "%d log lines are missing here: %s"
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (count, reason), None)
        record.msg, record.args = self.format(record), None
        return record

    def _do_without_thread(self) -> None:
        """Write lines synchronously in a forked child process, which lacks the writer thread."""
        self._is_fork = True
        self._parents = self._writer  # not let go of: to close its file needs a lock that its thread may have
        self._writer = _Writer(self, self._make_output())


class StandardOutput(logging.Handler):
    """A logging handler for the service's standard output, whatever user code does to `sys.stdout`.

    The output is unbuffered: a thread that waits for a slow reader must not hold the lock of a stream that is
    flushed at exit.
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
    """A log file without partial lines: if the disk is full, the line that does not fit is removed again."""

    def write(self, data: Any) -> int:
        """Write all of the data or nothing, and return its length. Raises OSError."""
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
    """The thread that writes log lines.

    If writing fails, the thread drops lines, reports the failure once, and keeps trying. chars: number of
    characters written so far.
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
        """Record that a line could not be written. Report other errors as the logging module does."""
        error = sys.exception()
        if isinstance(error, OSError):
            self._error = error
        else:
            logging.Handler.handleError(self._output, record)

    def _report(self) -> None:
        """Report once on standard error that the log can't be written, and that lines are dropped."""
        name = getattr(self._output, "baseFilename", "standard output")
        text = f"The log can't be written to {name}, and its lines are dropped until it can: {self._error}\n"
        with contextlib.suppress(OSError):
            os.write(2, text.encode("utf-8", "backslashreplace"))


def _count_chars(record: logging.LogRecord) -> int:
    return len(record.msg) + _RECORD_CHARS


_INDENT = "\n    "
NAME = "pipeline"  # of the logger above all of ours
QUIET_S = 10.0  # after a line is logged, others of its kind are only counted for this long
PATIENCE_S = 1.0  # what a line waits at most to be written, before a worker goes on or a process ends
_handlers: list[LogQueue] = []  # what set_up_logging made for this process: one for each output


class _TextLines(logging.Formatter):
    """Formats a record as a text line with a header. Further lines of the record's text are indented.

    Clients can't forge log lines: texts from clients never begin a line, even in tracebacks.
    """

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if text.isprintable():
            return text
        return _INDENT.join(_escaped(line, allowed="\t") for line in text.split("\n"))


class _TritonLines(_TextLines):
    """Formats a record as a line of Triton's log, with the time in UTC."""

    def __init__(self, process: str, *, iso8601: bool) -> None:
        super().__init__("%(asctime)s %(process)d %(shown)s] %(message)s", defaults={"shown": process})
        self._iso8601 = iso8601

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the first letter of the level (I, W or E) and the time, as in Triton's log."""
        utc = datetime.fromtimestamp(record.created, UTC)
        letter = "E" if record.levelno >= logging.ERROR else "W" if record.levelno == logging.WARNING else "I"
        return f"{utc:%Y-%m-%dT%H:%M:%SZ} {letter}" if self._iso8601 else f"{letter}{utc:%m%d %H:%M:%S.%f}"


class _JsonLines(logging.Formatter):
    """Formats a record as a JSON object on one line."""

    def __init__(self, service: str, process: str) -> None:
        super().__init__()
        self._service, self._process = service, process

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "service": self._service,
            "process": getattr(record, "origin", self._process),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        text = json.dumps(line, ensure_ascii=False)
        return text if text.isprintable() else "".join(map(_json_escaped, text))


class _WholeLines(logging.FileHandler):
    """Base class of log file handlers that write each line at once and completely."""

    def _open(self) -> io.TextIOWrapper:
        file = LineFile(self.baseFilename, "ab")
        return io.TextIOWrapper(file, self.encoding, self.errors, write_through=True)


class _RotatingFile(_WholeLines, RotatingFileHandler):
    """A log file that is renamed and started anew above `max_bytes`."""


class _WatchedFile(_WholeLines, WatchedFileHandler):
    """A log file that an external tool may rotate. If it can't be reopened, the line is lost."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)


def set_up_logging(
    config: LoggingConfig,
    service: str,
    process: str,
    *,
    beside_app: bool,
    log_fd: int = 1,
    late: bool = False,
) -> None:
    """Configure the logging of this process: to standard output, and to a file if `logging.directory` is set.

    beside_app: configure only this package's loggers, and leave the root logger to user code. Printed text is
    then written line by line. The package's lines are written before user code goes on, unless nobody reads
    them. Without user code, the loggers of asyncio, gRPC and others are configured the same way, and logging
    does not wait until lines are written.

    log_fd: file descriptor of standard output; 1 if printed lines do not pass through the output reader.

    late: create the file at the first line, not now.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
    encoding = getattr(sys.stdout, "encoding", "utf-8")
    outputs: list[Callable[[], logging.Handler]] = [partial(StandardOutput, log_fd, encoding)]
    if config.directory:
        outputs.append(partial(_create_file_handler, config, service, process, late))
    _handlers.clear()
    no_file: OSError | None = None
    for output in outputs:
        try:
            _handlers.append(LogQueue(output, PATIENCE_S if beside_app else 0))
        except OSError as exc:  # since the service's start the disk may be full, or the folder gone
            no_file = exc
    for handler in _handlers:
        handler.setFormatter(_create_formatter(config, service, process))
        handler.setLevel(config.level)
    logger = logging.getLogger(NAME)
    _attach(logger)
    if no_file:
        logger.error("logging.directory: this process has no file, %s; its lines are here alone", no_file)
    if not beside_app:
        logging.root.handlers[:] = _handlers
        logging.captureWarnings(True)


def change_level(level: str) -> None:
    """Set this process's log level. level: name of the level, such as "DEBUG"."""
    for handler in _handlers:
        handler.setLevel(level)
    logging.getLogger(NAME).setLevel(level)


def _create_formatter(config: LoggingConfig, service: str, process: str) -> logging.Formatter:
    """Return the log formatter for the key `logging.format` of config.yml."""
    if config.format == "json":
        return _JsonLines(service, process)
    if config.format == "text":
        return _TextLines("%(asctime)s %(levelname)s [%(shown)s] %(message)s", defaults={"shown": process})
    return _TritonLines(process, iso8601=config.format == "triton_iso8601")


def log_first_lines(config: LoggingConfig, service: str) -> None:
    """Log a script's warnings to standard error as JSON until the server starts, if `logging.format` is json.

    Standard output is reserved for the output of `--print-config`. Without JSON, the log handlers of user
    code get the lines.
    """
    if config.format != "json" or sys.stderr is None:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines(service, "script"))
    logger = logging.getLogger(NAME)
    logger.handlers[:] = [handler]
    logger.propagate = False


def logs_json() -> bool:
    """Whether this process logs JSON lines."""
    return any(isinstance(handler.formatter, _JsonLines) for handler in logging.getLogger(NAME).handlers)


def lines_written(timeout_s: float = PATIENCE_S) -> bool:
    """Wait until all lines logged so far are written, up to the timeout. Return whether they are."""
    over = time.monotonic() + timeout_s
    marks = [handler.mark() for handler in _handlers]
    return all(mark.wait(max(0.0, over - time.monotonic())) for mark in marks)


def lines_dropped() -> int:
    """Return how many log lines of this process were dropped, because an output did not accept them."""
    return max((handler.dropped for handler in _handlers), default=0)


def keep_our_loggers() -> None:
    """Restore this package's loggers after user code has configured logging: dictConfig disables them."""
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == NAME:
            logger.disabled = False
    our_logger = logging.getLogger(NAME)
    if not our_logger.handlers:  # else the app has given it some of its own
        _attach(our_logger)


def flaw_of_directory(directory: str) -> str | None:
    """Return an error message if no log file can be written in a folder; None if it can.

    The message is for an operator. The folder itself may not exist yet.
    """
    folder = Path(directory)
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        return f"logging.directory: {folder} is a file; name a folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"logging.directory: {folder} can't be written by this user; name another folder"
    return None


def one_line(text: str, max_chars: int = 300) -> str:
    """Return a client's text made safe for a log line: cut to `max_chars`, control characters escaped."""
    shown = text if len(text) <= max_chars else text[:max_chars] + "..."
    return shown if shown.isprintable() else _escaped(shown)


def _escaped(text: str, allowed: str = "") -> str:
    """Return a text with control characters and bidirectional marks escaped, which a terminal might obey."""
    return "".join(char if char.isprintable() or char in allowed else repr(char)[1:-1] for char in text)


def _json_escaped(char: str) -> str:
    return char if char.isprintable() else json.dumps(char)[1:-1]


def _attach(logger: logging.Logger) -> None:
    logger.handlers[:] = _handlers
    logger.propagate = False
    logger.setLevel(min(handler.level for handler in _handlers))


def _create_file_handler(config: LoggingConfig, service: str, process: str, late: bool) -> logging.Handler:
    """Return the handler of this process's log file.

    Each process has its own file, because a shared file would lose lines.
    """
    assert config.directory is not None
    Path(config.directory).mkdir(parents=True, exist_ok=True)
    path = Path(config.directory, f"{service}.{process}.log".replace("/", "_"))
    rotation = config.rotation
    if rotation.max_bytes == 0:
        return _WatchedFile(path, encoding="utf-8", errors="backslashreplace", delay=late)
    return _RotatingFile(
        path,
        maxBytes=rotation.max_bytes,
        backupCount=rotation.backup_count,
        encoding="utf-8",
        errors="backslashreplace",
        delay=late,
    )
