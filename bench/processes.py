"""What the kernel says of processes: CPU time, resident memory, children."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_UTIME = 11  # of /proc/<pid>/stat, counted from behind the command's parenthesis


def cpu_s(pids: Iterable[int]) -> float:
    """User and system time of the processes so far, in seconds; the kernel counts in steps of 10 ms."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[_UTIME]) + int(fields[_UTIME + 1])
    return ticks * _TICK_S


def busy_s() -> float:
    """User and system time of everything that runs on this machine so far, in seconds."""
    user, nice, system, _, _, irq, soft_irq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + soft_irq) * _TICK_S


def resident_mb(pid: int) -> float:
    """Resident memory in MB (10^6 bytes)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def children(pid: int) -> list[int]:
    """The processes that `pid`'s threads started and that still run."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted(int(child) for task in tasks for child in task.read_text().split())
