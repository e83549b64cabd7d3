"""The output reader: a process that turns what the service's processes print into log lines.

Native code and `print` write to descriptors 1 and 2 (standard output and error). The reader is a separate
process, because a writer may hold Python's GIL while it writes, or crash with its last message in the pipe.
The reader ends when all pipes are closed.
"""

from __future__ import annotations

import codecs
import json
import logging
import os
import re
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

from pipeline.process.log import lines_written, one_line, set_up_logging
from pipeline.process.processes import kill_groups

STREAMS = ("stdout", "stderr")
GRACE_S = 2.0  # after the front's end, for remaining writers: a hook's forked child may never end
NAME = "output"  # of this process, in its log file's name
_READ_BYTES = 64 << 10
_MESSAGE_BYTES = 64 << 10
LINE_CHARS = 1000  # longer lines are split: a pipe writes up to 4 KB atomically, so lines never mix

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
    """Incremental decoder: splits the bytes of a pipe into lines of text, without line ends."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def split(self, data: bytes) -> Iterator[str]:
        """Yield the lines that these bytes complete. Lines longer than `LINE_CHARS` are cut."""
        *lines, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        for line in lines:
            yield from _split_line(line)
        if len(self._rest) > LINE_CHARS:
            cut = len(self._rest) // LINE_CHARS * LINE_CHARS
            begun, self._rest = self._rest[:cut], self._rest[cut:]
            yield from _split_line(begun)

    def flush(self) -> Iterator[str]:
        """Yield the text after the last line end. Called at the end of the stream."""
        yield from _split_line(self._rest + self._decoder.decode(b"", final=True))
        self._rest = ""


def _split_line(line: str) -> Iterator[str]:
    """Yield a line in pieces of at most LINE_CHARS. Of a progress bar, only the last state is kept."""
    shown = line.rstrip("\r").rpartition("\r")[2]
    for start in range(0, len(shown), LINE_CHARS):
        piece = shown[start : start + LINE_CHARS]
        if not piece.isspace():
            yield piece


def guess_level(text: str, stream: str) -> int:
    """Return the logging level that a printed line seems to have, such as ERROR for "E0413 ..." of glog.

    stream: `stdout` or `stderr`; lines without a hint are INFO or WARNING.
    """
    if match := _LETTER.match(text):
        return _LETTERS[match[1] or match[2]]
    if _CRASH.search(text):
        return logging.CRITICAL
    if match := _WORD.match(text):
        return logging.getLevelNamesMapping()[match[1].upper()]
    if "Warning: " in text:  # of Python: "app.py:3: UserWarning: ..."
        return logging.WARNING
    return logging.INFO if stream == "stdout" else logging.WARNING


class Pipe:
    """Reader of standard output or standard error of one process: logs its lines."""

    def __init__(self, process: str, stream: str) -> None:
        self._log = logging.getLogger(stream)
        self._log.setLevel(logging.DEBUG)
        self._stream = stream
        self._origin = {"origin": process, "shown": f"{process} {stream}"}
        self._lines = Lines()

    def log_data(self, data: bytes) -> None:
        """Log the lines that these bytes complete.

        Empty data means the end of the stream, and logs the rest.
        """
        for text in self._lines.split(data) if data else self._lines.flush():
            self._log.log(
                guess_level(text, self._stream), "%s", one_line(text, len(text)), extra=self._origin
            )


class Reader:
    """Main loop of the output reader: reads pipes until the front process has ended and the pipes are closed.

    Workers end with the front process. Processes started by their code would survive, so the reader kills
    their process groups.
    """

    def __init__(self, control: socket.socket) -> None:
        """control: socket on which the front process sends pipes and process groups."""
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, None)
        self._pipes = 0
        self._groups: set[int] = set()  # process groups of the workers

    def run(self) -> None:
        """Read and log until the front process has ended and all pipes are closed, or for `GRACE_S` more."""
        deadline = None  # set when the front has ended
        while deadline is None or (self._pipes and time.monotonic() < deadline):
            for key, _ in self._selector.select(None if deadline is None else GRACE_S):
                if key.data is not None:
                    self._read_pipe(key.fd, key.data)
                elif not self._receive():
                    kill_groups(self._groups)
                    deadline = time.monotonic() + GRACE_S

    def _receive(self) -> bool:
        """Receive the pipes of another process, or the process groups of all workers, from the front process.

        Return False if the front process has closed its end.
        """
        data, fds, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, len(STREAMS))
        if not data:
            self._selector.unregister(self._control)
            return False
        if not fds:
            self._groups = set(map(int, data.split())) - {0}
            return True
        for stream, fd in zip(STREAMS, fds, strict=True):
            os.set_blocking(fd, False)
            self._selector.register(fd, selectors.EVENT_READ, Pipe(data.decode(), stream))
            self._pipes += 1
        return True

    def _read_pipe(self, fd: int, pipe: Pipe) -> None:
        """Log the bytes of a readable pipe, and close the pipe at its end."""
        data = os.read(fd, _READ_BYTES)
        pipe.log_data(data)
        if not data:
            self._selector.unregister(fd)
            os.close(fd)
            self._pipes -= 1


def main(arguments: list[str]) -> None:
    """Run the output reader.

    The front process starts it by `python -m pipeline.output CONTROL_FD SERVICE LOGGING`. CONTROL_FD:
    descriptor of a socket from the front process. LOGGING: the `logging` section of config.yml as JSON.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # the reader ends after the front
    control, service, logging_json = arguments
    config = json.loads(logging_json, object_hook=lambda section: SimpleNamespace(**section))
    set_up_logging(config, service, NAME, beside_app=False, late=True)
    Reader(socket.socket(fileno=int(control))).run()
    if not lines_written():
        os._exit(0)  # a normal exit would wait for the log thread, which is blocked
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
