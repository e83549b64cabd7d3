"""Shares of the cores that two computing processes get beside two processes of other sessions.

In some rows their session also has processes that do nothing but wake up often. A kernel that divides its
cores by session (kernel.sched_autogroup_enabled) gives each session the same share, so these should have
little effect. A large effect means that a server whose processes wake often looks faster than it is.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.processes import children, cpu_s

NEIGHBOURS = COMPUTING = 2
_NAP_S = 0.0007
_SETTLED_S = 2.0
_SPIN = "while True: pass"
_WAKE = f"import time\nwhile True: time.sleep({_NAP_S})"
# A session: its first process starts the others, and reports when all run.
_SESSION = """
import os, subprocess, sys
spin, wake, computing, waking, nice = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
for _ in range(computing):
    subprocess.Popen([sys.executable, "-c", spin], preexec_fn=lambda: os.nice(nice))
print(os.getpid(), flush=True)
for _ in range(waking):
    subprocess.Popen([sys.executable, "-c", wake])
sys.stdin.read()
os.killpg(0, 9)
"""


@contextlib.contextmanager
def session(computing: int, waking: int = 0, nice: int = 0) -> Iterator[int]:
    """Start a session with these processes, and yield its first process."""
    command = [sys.executable, "-c", _SESSION, _SPIN, _WAKE, *map(str, (computing, waking, nice))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as first:
        assert first.stdout is not None
        first.stdout.readline()
        yield first.pid


def cores(waking: int, nice: int, seconds: float) -> float:
    """Return the cores that the computing processes get, beside as many others."""
    with contextlib.ExitStack() as stack:
        for _ in range(NEIGHBOURS):
            stack.enter_context(session(1))
        measured = children(stack.enter_context(session(COMPUTING, waking, nice)))[:COMPUTING]
        time.sleep(_SETTLED_S)
        before, began = cpu_s(measured), time.monotonic()
        time.sleep(seconds)
        return (cpu_s(measured) - before) / (time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python -m bench.share_of_cores")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each row (%(default)g)")
    options = parser.parse_args()
    switch = Path("/proc/sys/kernel/sched_autogroup_enabled")
    state = switch.read_text().strip() if switch.exists() else "not there"
    table = Table(
        "processes that wake 1,000 times a second", "nice", "cores that two get", title=f"autogroup: {state}"
    )
    for waking, nice in ((0, 0), (2, 0), (4, 0), (0, 5), (2, 5)):
        table.add_row(str(waking), str(nice), f"{cores(waking, nice, options.seconds):.2f}")
    Console().print(table, f"{NEIGHBOURS} others compute, on {os.cpu_count()} cores")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
