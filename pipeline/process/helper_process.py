"""Helper processes: run a module in a child process and return its bounded output.

Model code, pip and engines run in helpers, because they may hang, crash or write without end. Three things
end a helper early: its time limit, its output limit, and `cancel_helpers` when the service stops. The kernel
kills a helper whose parent dies.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import IO, NamedTuple

from pipeline.errors import ServingError
from pipeline.process.processes import python_module

MAX_OUTPUT_BYTES = 16 << 20  # of standard output, and of standard error
_READ_BYTES = 64 << 10

_lock = threading.Lock()
_running: set[subprocess.Popen[bytes]] = set()
_cancelled = threading.Event()


class HelperFailed(ServingError):
    """A helper was ended early. The message continues a sentence that begins with the helper's name."""


class HelperCancelled(HelperFailed):
    """The service stops, and no helper runs any more."""

    def __init__(self) -> None:
        super().__init__("was ended, because the service stops")


class HelperResult(NamedTuple):
    """The exit status of a helper, negative for a signal, and its output."""

    status: int
    stdout: str
    stderr: str

    def last_line(self) -> str:
        """Return the last line of standard output: frameworks print before it. Raises IndexError."""
        return self.stdout.splitlines()[-1]


def run_helper(
    module: str,
    *arguments: str,
    timeout_s: float,
    stdin: bytes = b"",
    max_output_bytes: int = MAX_OUTPUT_BYTES,
) -> HelperResult:
    """Run `python -m module arguments`, and wait for its end. Any thread may call it.

    Raises HelperFailed for a helper over a limit, HelperCancelled after `cancel_helpers`, and OSError when no
    process can be started.
    """
    deadline = time.monotonic() + timeout_s
    with tempfile.TemporaryFile() as file:
        file.write(stdin)
        file.seek(0)
        process = subprocess.Popen(
            [*python_module(module, parent=os.getpid()), *arguments],
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # its own children are killed with it
        )
    with _registered(process):
        outputs = _read_outputs(process, deadline, max_output_bytes)
        if outputs is None:
            raise HelperFailed(f"took over {timeout_s:g} s")
    if _cancelled.is_set():
        raise HelperCancelled
    return HelperResult(process.returncode, *(data.decode("utf-8", "replace") for data in outputs))


def cancel_helpers() -> None:
    """Kill the helpers of this process, and refuse new ones."""
    with _lock:
        _cancelled.set()
        for process in _running:
            _kill(process)


@contextlib.contextmanager
def _registered(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let `cancel_helpers` find the process. Kill the process and its children at the end."""
    with process:
        with _lock:
            _running.add(process)
            if _cancelled.is_set():
                _kill(process)
        try:
            yield
        finally:
            with _lock:
                _running.discard(process)
                _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children. Nobody has waited for it yet, so its number is still its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _read_outputs(
    process: subprocess.Popen[bytes], deadline: float, max_bytes: int
) -> tuple[bytearray, bytearray] | None:
    """Read both outputs until the process ends. Returns None when the deadline passes first."""
    assert process.stdout is not None and process.stderr is not None
    outputs = {process.stdout: bytearray(), process.stderr: bytearray()}
    end = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            for pipe in outputs:
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ)
            selector.register(end, selectors.EVENT_READ)
            while events := selector.select(max(0.0, deadline - time.monotonic())):
                ready = {key.fileobj for key, _ in events}
                has_ended = end in ready  # a child of its own may hold the pipes open
                for pipe, data in outputs.items():
                    if (has_ended or pipe in ready) and not _read_available(pipe, data, max_bytes):
                        with contextlib.suppress(KeyError):
                            selector.unregister(pipe)
                if has_ended:
                    return outputs[process.stdout], outputs[process.stderr]
    finally:
        os.close(end)
    return None


def _read_available(pipe: IO[bytes], data: bytearray, max_bytes: int) -> bool:
    """Add the bytes that the pipe holds. Returns False at its end. Raises HelperFailed above the limit."""
    while True:
        try:
            chunk = os.read(pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        data += chunk
        if len(data) > max_bytes:
            raise HelperFailed(f"wrote over {max_bytes} bytes")
