"""Helper processes: run a module or a command in a child process, with limits on its time and output.

Model code, converters, pip and engines run in helper processes, because they may hang, crash or write without
end. Three things end a helper process early: its time limit, its output limit, and `cancel_helpers` when the
service stops. The kernel kills a helper process whose parent dies.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from pipeline.errors import ServingError
from pipeline.process.processes import python_module

MAX_OUTPUT_BYTES = 16 << 20  # of standard output, and of standard error
_CHUNK_BYTES = 64 << 10
_DRAINED_CHUNKS = 256  # after the end of a program

Sink = Callable[[bytes], None]

_lock = threading.Lock()
_running: set[subprocess.Popen[bytes]] = set()
_cancelled = threading.Event()


class HelperFailed(ServingError):
    """Raised when a helper process is killed early: it exceeded its time or output limit.

    The message completes a sentence that begins with the helper's name, e.g. "took over 5 s".
    """


class HelperCancelled(HelperFailed):
    """Raised when a helper process is killed, or not started, because the service stops."""

    def __init__(self) -> None:
        super().__init__("was ended, because the service stops")


class HelperResult(NamedTuple):
    """The exit status (negative: the number of the signal that killed it) and output of a helper process."""

    status: int
    stdout: str
    stderr: str

    def last_line(self) -> str:
        """Return the last line of standard output: the result. Frameworks may print lines before it.

        Raises IndexError without output.
        """
        return self.stdout.splitlines()[-1]


def run_helper(
    module: str,
    *arguments: str,
    timeout_s: float,
    stdin: bytes = b"",
    max_output_bytes: int = MAX_OUTPUT_BYTES,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    pass_fds: Sequence[int] = (),
) -> HelperResult:
    """Run `python -m module arguments` in a helper process, and return its status and output when it ends.

    Any thread may call it. Raises HelperFailed for a process over a limit, HelperCancelled after
    `cancel_helpers`, and OSError when no process can be started.
    """
    command = [*python_module(module, parent=os.getpid()), *arguments]
    return run_program(
        command,
        timeout_s=timeout_s,
        stdin=stdin,
        max_output_bytes=max_output_bytes,
        env=env,
        cwd=cwd,
        pass_fds=pass_fds,
    )


def run_program(
    command: Sequence[str],
    *,
    timeout_s: float,
    stdin: bytes = b"",
    max_output_bytes: int = MAX_OUTPUT_BYTES,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    pass_fds: Sequence[int] = (),
) -> HelperResult:
    """Run a command in a helper process, as `run_helper` runs a module.

    The command's process outlives a parent that is killed.
    """
    deadline = time.monotonic() + timeout_s
    outputs = bytearray(), bytearray()
    with start_program(command, stdin=stdin, env=env, cwd=cwd, pass_fds=pass_fds) as process:
        assert process.stdout is not None and process.stderr is not None
        sinks: dict[int, Sink] = {
            pipe.fileno(): partial(_append, output, max_output_bytes)
            for pipe, output in zip((process.stdout, process.stderr), outputs, strict=True)
        }
        if not read_outputs(process, sinks, deadline):
            raise HelperFailed(f"took over {timeout_s:g} s")
    if _cancelled.is_set():
        raise HelperCancelled
    return HelperResult(process.returncode, *(data.decode("utf-8", "replace") for data in outputs))


@contextlib.contextmanager
def start_program(
    command: Sequence[str],
    *,
    stdin: bytes = b"",
    stderr: int = subprocess.PIPE,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    pass_fds: Sequence[int] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """Context manager: start a child process whose output is read with `read_outputs`.

    Kills the process and its children at the end.
    """
    # In memory: a container may have no folder that can be written.
    with os.fdopen(os.memfd_create("paddlewheel-stdin"), "r+b") as file:
        file.write(stdin)
        file.seek(0)
        process = subprocess.Popen(
            command,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=env,
            cwd=cwd,
            pass_fds=pass_fds,
            start_new_session=True,  # its own children are killed with it
        )
    with process:
        try:
            with _lock:
                _running.add(process)
                if _cancelled.is_set():
                    _kill(process)
            yield process
        finally:
            with _lock:
                _running.discard(process)
                _kill(process)


def read_outputs(
    process: subprocess.Popen[bytes],
    sinks: Mapping[int, Sink],
    deadline: float,
    is_complete: Callable[[], bool] = lambda: False,
) -> bool:
    """Pass a child process's output to `sinks` by file descriptor, until it ends or `is_complete()` is true.

    Returns False when the deadline (of `time.monotonic`) passes first.
    """
    process_end = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            for source in sinks:
                os.set_blocking(source, False)
                selector.register(source, selectors.EVENT_READ)
            selector.register(process_end, selectors.EVENT_READ)
            ready: set[int] = set()
            while not is_complete() and process_end not in ready:
                ready = {key.fd for key, _ in selector.select(max(0.0, deadline - time.monotonic()))}
                if not ready:
                    return False
                for source in ready - {process_end}:
                    if not _read_chunk(source, sinks[source]):
                        selector.unregister(source)
            return True
    finally:
        os.close(process_end)
        for source, sink in sinks.items():
            _drain(source, sink)


def cancel_helpers() -> None:
    """Kill all helper processes of this process, and reject new ones. Called when the service ends."""
    with _lock:
        _cancelled.set()
        for process in _running:
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a child process and its children.

    The child has not been waited for yet, so its PID can't belong to another process.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _drain(source: int, sink: Sink) -> None:
    """Pass the remaining bytes of a pipe to a sink, up to a limit.

    Without a limit, a grandchild that holds the other end could write forever.
    """
    with contextlib.suppress(BlockingIOError):
        for _ in range(_DRAINED_CHUNKS):
            if not (data := os.read(source, _CHUNK_BYTES)):
                return
            sink(data)


def _read_chunk(source: int, sink: Sink) -> bool:
    """Pass one chunk of a pipe to a sink. Returns False at the end of the pipe."""
    data = os.read(source, _CHUNK_BYTES)
    if data:
        sink(data)
    return bool(data)


def _append(output: bytearray, max_bytes: int, data: bytes) -> None:
    """Append output of a child process to a buffer. Raises HelperFailed above the limit."""
    output += data
    if len(output) > max_bytes:
        raise HelperFailed(f"wrote over {max_bytes} bytes")
