"""The lifeline of a worker: who holds it, and when it breaks."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.support.service_process import PATIENCE_S, ROOT, is_running

PARENT = """
import os, signal, sys
from pipeline.worker.main import hold_lifeline
hold_lifeline(int(sys.argv[1]))
if child := os.fork():
    print(child, flush=True)
signal.pause()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "close_range"), reason="before glibc 2.34")
def test_it_breaks_with_its_process_though_what_that_forked_lives_on() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    command = [sys.executable, "-c", PARENT, str(theirs.fileno())]
    with (
        ours,
        subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE) as process,
    ):
        theirs.close()
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            with pytest.raises(BlockingIOError):
                ours.recv(1)
            process.kill()
            ours.settimeout(PATIENCE_S)
            assert ours.recv(1) == b""
            assert is_running(child)
        finally:
            os.kill(child, signal.SIGKILL)
