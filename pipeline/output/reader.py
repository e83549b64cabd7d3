"""The output reader: makes log lines of what the processes of a service write to descriptors 1 and 2.

Native code writes there, and so does `print`. It is a process of its own: who writes may hold Python's lock
meanwhile, or crash with its last words in the pipe. It waits for nobody, and ends when nobody writes more.
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
GRACE_S = 2.0  # for what still writes when the front has gone: a child that a hook has forked may for ever
NAME = "output"  # of this process, as its log file has it
_READ_BYTES = 64 << 10
_MESSAGE_BYTES = 64 << 10


class Pipe:
    """One stream of one process."""

    def __init__(self, process: str, stream: str) -> None:
        self._log = logging.getLogger(stream)
        self._log.setLevel(logging.DEBUG)
        self._stream = stream
        self._origin = {"origin": process, "shown": f"{process} {stream}"}
        self._lines = Lines()

    def take(self, data: bytes) -> None:
        """Log the lines that are whole with these bytes; without any, what is left."""
        for text in self._lines.add(data) if data else self._lines.end():
            self._log.log(
                guess_level(text, self._stream), "%s", one_line(text, len(text)), extra=self._origin
            )


class Reader:
    """Reads all pipes until the front has gone and they are at their end.

    Workers die with the front. What their code has started would outlive it: the reader kills their groups.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, None)
        self._pipes = 0
        self._groups: set[int] = set()  # process groups of the workers

    def run(self) -> None:
        over = None  # when to give up
        while over is None or (self._pipes and time.monotonic() < over):
            for key, _ in self._selector.select(None if over is None else GRACE_S):
                if key.data is not None:
                    self._read_pipe(key.fd, key.data)
                elif not self._receive():
                    kill_groups(self._groups)
                    over = time.monotonic() + GRACE_S

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
        pipe.take(data)
        if not data:
            self._selector.unregister(fd)
            os.close(fd)
            self._pipes -= 1


def main(arguments: list[str]) -> None:
    """`python -m pipeline.output CONTROL_FD SERVICE LOGGING`: started by the front. LOGGING: as JSON."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # the front ends, and then this
    control, service, told = arguments
    config = json.loads(told, object_hook=lambda section: SimpleNamespace(**section))
    set_up_logging(config, service, NAME, beside_app=False, late=True)
    Reader(socket.socket(fileno=int(control))).run()
    if not lines_written():
        os._exit(0)  # an orderly end would wait for the thread that waits for a reader
    sys.exit(0)
