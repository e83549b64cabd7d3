"""CPU time of the processes under measurement, and of other work on the same cores."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_BUSY = (0, 1, 2, 5, 6, 7)  # columns of /proc/stat: user, nice, system, irq, softirq, steal


class CpuUse(NamedTuple):
    """CPU use of a period: CPU seconds of the measured processes, and cores that other processes kept busy.

    /proc/stat counts in ticks of 10 ms, so the other cores in a short period may be negative.
    """

    own_s: float
    other_cores: float


class CpuMeter:
    """Measures the CPU time of some processes from now on, and how many cores other work uses meanwhile."""

    def __init__(self, pids: Sequence[int], generator: Sequence[int] = ()) -> None:
        """pids: the measured processes.

        generator: the load generator's processes, which do not count as other work.
        """
        self._pids = pids
        self._generator = generator
        self._began = time.monotonic()
        self._own_s = _read_all_s(pids)
        self._busy_s = _read_busy_s() - _read_all_s(generator)

    def measure(self) -> CpuUse:
        """Return the CPU use since the meter was created."""
        own_s = _read_all_s(self._pids) - self._own_s
        other_s = _read_busy_s() - _read_all_s(self._generator) - self._busy_s - own_s
        return CpuUse(own_s, other_s / max(1e-3, time.monotonic() - self._began))


def _read_all_s(pids: Sequence[int]) -> float:
    return sum(map(_read_process_s, pids))


def _read_process_s(pid: int) -> float:
    """Return the CPU seconds of a process with all its threads; 0 for a process that has ended.

    Reads the process's CPU clock, see clock_getcpuclockid(3). /proc counts in ticks of 10 ms.
    """
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def _read_busy_s() -> float:
    """Return the seconds for which this process's cores were busy since boot; 0 if /proc does not tell."""
    usable = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/stat").read_text("ascii").splitlines():
            name, *counts = line.split()
            if name in usable:
                ticks += sum(int(counts[column]) for column in _BUSY)
    return ticks / _TICKS_PER_S
