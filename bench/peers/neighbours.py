"""Other work on the same cores: processes that spin during the measurement."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from bench.peers.server import Processes

_SPIN = "import os\nprint(flush=True)\nwhile os.getppid() == {parent}: pass"


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[Processes]:
    """Run `count` spinning processes, which end with this process at the latest.

    They share the session of the servers. A kernel that divides its cores by session favours sessions whose
    processes wake often (`bench.share_of_cores`), and the comparison would measure that.
    """
    with contextlib.ExitStack() as stack:
        pids = []
        for _ in range(count):
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _SPIN.format(parent=os.getpid())],
                    stdout=subprocess.PIPE,
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
            pids.append(process.pid)
        yield Processes(*pids)
