"""Other work on the same cores: processes that spin while everything is measured."""

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
    """So many of them. They end with this process, too.

    They are of one session with the servers. A kernel that shares its cores out by session gives more to one
    with processes that wake often than to others (`bench.share_of_cores`): that would be compared, not the
    servers.
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
