"""Whether the kernel has killed a process of this container or machine because memory ran out."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

# cgroup v2 and v1 as a container sees its own; the whole machine.
COUNTERS = (
    Path("/sys/fs/cgroup/memory.events"),
    Path("/sys/fs/cgroup/memory/memory.oom_control"),
    Path("/proc/vmstat"),
)


def oom_kills(counters: Sequence[Path] = COUNTERS) -> int:
    """How many processes the kernel has killed for want of memory; 0 where it does not tell."""
    kills = 0
    for counter in counters:
        with contextlib.suppress(OSError):
            lines = counter.read_text("ascii", "replace").splitlines()
            kills += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return kills
