"""Pipes for standard output and standard error of the service's processes, and the process that reads them.

The output reader (`pipeline.output`) is a separate process that writes what it reads as log lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from select import PIPE_BUF

from pipeline.config.config_file import LoggingConfig
from pipeline.process.log import PATIENCE_S
from pipeline.process.processes import OUTPUT_READER, cpu_ticks, python_module

log = logging.getLogger(__name__)

RESTART_AFTER_S = 1.0  # from the end of a reader to the start of the next
LOOK_S = 1.0  # between two looks at the pipes


class Output:
    """The two pipes that capture standard output and standard error (descriptors 1 and 2) of one process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.group = 0  # process group of the worker that writes; 0 before it is spawned, and for the front
        pipes = os.pipe(), os.pipe()
        self.read_ends = [read_end for read_end, _ in pipes]
        self.write_ends = [write_end for _, write_end in pipes]

    def close_write_ends(self) -> None:
        """Close this process's copies of the write ends, after the other process has started or failed to."""
        _close(self.write_ends)

    def close(self) -> None:
        """Close all ends of the pipes. The output reader process keeps its own copies of the read ends."""
        self.close_write_ends()
        _close(self.read_ends)


class Outputs:
    """Owner of the output reader process and of the pipes that it reads; restarts the reader if it dies.

    The read ends also stay open in this process, so that a new reader can replace a dead reader.
    """

    def __init__(self, config: LoggingConfig, service: str) -> None:
        """Start the reader, and redirect standard output and standard error of this process to it.

        config: the `logging` section of config.yml. service: name of the service.
        """
        # log_fd: the original standard output, for log lines
        self.log_fd, self._error_fd = os.dup(1), os.dup(2)
        self._arguments = [service, config.model_dump_json()]
        front_output = Output("front")
        self._known = [front_output]
        self._start()
        for fd, write_end in zip((1, 2), front_output.write_ends, strict=True):
            os.set_blocking(write_end, False)  # the front starts the readers, and must not wait for one
            os.dup2(write_end, fd)
        # Replaced because those of a file would seek.
        sys.stdout, sys.stderr = os.fdopen(1, "w", 1, closefd=False), os.fdopen(2, "w", 1, closefd=False)
        front_output.close_write_ends()

    def open(self, name: str) -> Output:
        """Create the pipes for standard output and standard error of a process.

        name: its name in log lines.
        """
        output = Output(name)
        self._known.append(output)
        self._send_pipes(output)
        return output

    def set_group(self, output: Output, group: int) -> None:
        """Register a worker's process group: the reader kills the group if this process dies."""
        output.group = group
        self._send_groups()

    def forget(self, output: Output) -> None:
        """Close the pipes of a process that has ended, or was not started."""
        self._known.remove(output)
        output.close()
        if output.group:
            self._send_groups()

    def close(self) -> None:
        """Restore standard output, and wait up to `PATIENCE_S` for the reader to write all lines."""
        os.dup2(self.log_fd, 1)
        os.dup2(self._error_fd, 2)
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._reader.wait(PATIENCE_S)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Context manager: replaces a reader that ends or stops reading, because writers would block."""
        tasks = [
            asyncio.create_task(self._replace_ended(), name="output reader"),
            asyncio.create_task(self._kill_stalled(), name="output reader's pipes"),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()

    async def _replace_ended(self) -> None:
        while True:
            await _wait_for_exit(self._reader.pid)
            log.error("The output reader ended with %s; another takes its place", self._reader.wait())
            self._control.close()
            while self._control.fileno() < 0:
                await asyncio.sleep(RESTART_AFTER_S)
                try:
                    self._start()
                except OSError as exc:  # no memory, no process
                    log.error("The output reader can't be started (%s)", exc)

    async def _kill_stalled(self) -> None:
        """Kill a reader that uses no CPU for a second while a pipe is full.

        `_replace_ended` then starts a new reader.
        """
        before: tuple[int, int] | None = None
        while True:
            await asyncio.sleep(LOOK_S)
            now = (self._reader.pid, cpu_ticks(self._reader.pid)) if self._is_full() else None
            if now is not None and now == before:
                log.error("The output reader takes no more lines, and processes wait for it: it is killed")
                self._reader.kill()
                now = None
            before = now

    def _is_full(self) -> bool:
        """Return whether a pipe is full, so that a process may have to wait until its output is read."""
        return any(_free_bytes(fd) < PIPE_BUF for output in self._known for fd in output.read_ends)

    def _start(self) -> None:
        """Start a reader process, and send it all pipes. Raises OSError if the system lacks resources."""
        control, reader_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with reader_end, contextlib.ExitStack() as unless_started:
            unless_started.enter_context(control)
            self._reader = subprocess.Popen(
                [*python_module(OUTPUT_READER), str(reader_end.fileno()), *self._arguments],
                pass_fds=[reader_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.log_fd,
                stderr=self._error_fd,
                process_group=0,  # a Ctrl-C in the terminal is for the front alone
            )
            unless_started.pop_all()
        self._control = control
        for output in self._known:
            self._send_pipes(output)
        self._send_groups()

    def _send_groups(self) -> None:
        """Send the output reader the worker process groups that it kills if this process dies."""
        groups = " ".join(str(output.group) for output in self._known)
        with contextlib.suppress(OSError):
            self._control.send(groups.encode())

    def _send_pipes(self, output: Output) -> None:
        """Send the reader the read ends of a process's pipes."""
        with contextlib.suppress(OSError):  # the reader has died; the next reader gets all pipes
            socket.send_fds(self._control, [output.name.encode()], output.read_ends)


async def _wait_for_exit(pid: int) -> None:
    """Wait until a child process has ended, without reaping it."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    pidfd = os.pidfd_open(pid)
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _free_bytes(fd: int) -> int:
    """Return how many bytes can be written to a pipe before it is full."""
    unread = int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)
    return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) - unread


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())
