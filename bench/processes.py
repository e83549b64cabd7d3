"""Figures of the kernel about processes: CPU time, resident memory, children."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_UTIME = 11  # of /proc/<pid>/stat, counted from behind the command's parenthesis


def cpu_s(pids: Iterable[int]) -> float:
    """Return user and system time of the processes so far, in seconds.

    The kernel counts in steps of 10 ms.
    """
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[_UTIME]) + int(fields[_UTIME + 1])
    return ticks * _TICK_S


class ThreadUse(NamedTuple):
    """Use of the cores by one thread so far."""

    user_s: float = 0.0
    kernel_s: float = 0.0
    wait_s: float = 0.0  # time that the thread was ready to run but had no core
    switches: int = 0  # number of times that the thread blocked

    def __add__(self, other: object) -> ThreadUse:
        assert isinstance(other, ThreadUse)
        return ThreadUse(*(first + second for first, second in zip(self, other, strict=True)))

    def since(self, earlier: ThreadUse) -> ThreadUse:
        return ThreadUse(*(now - before for now, before in zip(self, earlier, strict=True)))


def read_threads(pids: Iterable[int]) -> dict[tuple[int, int], ThreadUse]:
    """Return the use of the cores by process and thread id. A thread that ends meanwhile is left out."""
    uses = {}
    for pid in pids:
        for folder in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                uses[pid, int(folder.name)] = _read_thread(folder)
    return uses


def _read_thread(folder: Path) -> ThreadUse:
    """Return the use of the cores by the thread of this folder.

    The kernel measures the time on a core in ns, and divides it into user and kernel time by samples.
    """
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    user, kernel = int(fields[_UTIME]), int(fields[_UTIME + 1])
    run_ns, wait_ns, _ = map(int, (folder / "schedstat").read_text().split())
    kernel_s = run_ns / 1e9 * kernel / max(1, user + kernel)
    status = (folder / "status").read_text().partition("\nvoluntary_ctxt_switches:")[2]
    return ThreadUse(run_ns / 1e9 - kernel_s, kernel_s, wait_ns / 1e9, int(status.split()[0]))


def busy_s() -> float:
    """Return user and system time of all processes on this machine so far, in seconds."""
    user, nice, system, _, _, irq, soft_irq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + soft_irq) * _TICK_S


def resident_mb(pid: int) -> float:
    """Return the resident memory in MB (10^6 bytes)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def children(pid: int) -> list[int]:
    """Return the running processes that threads of `pid` have started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted(int(child) for task in tasks for child in task.read_text().split())
