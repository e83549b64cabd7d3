"""The output reader: turns the output of a service's processes on descriptors 1 and 2 into log lines.

Native code and `print` write there. The reader is a separate process, because a writer may hold Python's GIL
while it writes, or crash with its last message in the pipe. The reader ends when all pipes are closed.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import sys
import time
from types import SimpleNamespace

from pipeline.output.lines import Lines, guess_level
from pipeline.process.log import lines_written, one_line, set_up_logging
from pipeline.process.processes import kill_groups

STREAMS = ("stdout", "stderr")
GRACE_S = 2.0  # after the front's end, for remaining writers: a hook's forked child may never end
NAME = "output"  # of this process, in its log file's name
_READ_BYTES = 64 << 10
_MESSAGE_BYTES = 64 << 10


class Pipe:
    """Standard output or standard error of a process."""

    def __init__(self, process: str, stream: str) -> None:
        self._log = logging.getLogger(stream)
        self._log.setLevel(logging.DEBUG)
        self._stream = stream
        self._origin = {"origin": process, "shown": f"{process} {stream}"}
        self._lines = Lines()

    def log_data(self, data: bytes) -> None:
        """Log the lines that these bytes complete. Empty data, at the end of the stream, logs the rest."""
        for text in self._lines.add(data) if data else self._lines.end():
            self._log.log(
                guess_level(text, self._stream), "%s", one_line(text, len(text)), extra=self._origin
            )


class Reader:
    """Reads all pipes until the front has ended and the pipes are closed.

    Workers end with the front. Processes that their code has started would survive: the reader kills their
    process groups.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, None)
        self._pipes = 0
        self._groups: set[int] = set()  # process groups of the workers

    def run(self) -> None:
        deadline = None  # set when the front has ended
        while deadline is None or (self._pipes and time.monotonic() < deadline):
            for key, _ in self._selector.select(None if deadline is None else GRACE_S):
                if key.data is not None:
                    self._read_pipe(key.fd, key.data)
                elif not self._receive():
                    kill_groups(self._groups)
                    deadline = time.monotonic() + GRACE_S

    def _receive(self) -> bool:
        """Receive the pipes of one more process, or the groups of all workers.

        Returns False where the front has closed its end.
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
        data = os.read(fd, _READ_BYTES)
        pipe.log_data(data)
        if not data:
            self._selector.unregister(fd)
            os.close(fd)
            self._pipes -= 1


def main(arguments: list[str]) -> None:
    """Run `python -m pipeline.output CONTROL_FD SERVICE LOGGING`, as the front does; LOGGING is JSON."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # the reader ends after the front
    control, service, logging_json = arguments
    config = json.loads(logging_json, object_hook=lambda section: SimpleNamespace(**section))
    set_up_logging(config, service, NAME, beside_app=False, late=True)
    Reader(socket.socket(fileno=int(control))).run()
    if not lines_written():
        os._exit(0)  # a normal exit would wait for the log thread, which is blocked
    sys.exit(0)
