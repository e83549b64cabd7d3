"""The cores this process may use, and the limits of its control group."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
# Counters of the OOM killer: cgroup v2 and v1 as a container sees its own, and the machine's.
OOM_COUNTERS = (
    CGROUP / "memory.events",
    CGROUP / "memory/memory.oom_control",
    Path("/proc/vmstat"),
)


def usable_cores() -> int:
    """Cores that this process can keep busy, 1 at least: its affinity, and the control group's limit."""
    quota = cpu_quota()
    return cores() if quota is None else max(1, min(cores(), math.ceil(quota)))


def cores() -> int:
    """The cores this process may run on."""
    return len(os.sched_getaffinity(0))


def cpu_quota() -> float | None:
    """Cores that the control group grants, versions 2 and 1; None without a limit."""
    for text in limits("cpu.max", "cpu"):
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit():
            return int(quota) / int(period)
    quotas = (text for text in limits("cpu.cfs_quota_us", "cpu") if text.isdigit())
    periods = (text for text in limits("cpu.cfs_period_us", "cpu") if text.isdigit())
    return next((int(quota) / int(period) for quota, period in zip(quotas, periods, strict=False)), None)


def limits(file: str, controller: str) -> Iterator[str]:
    """The content of a control file: of this process's group, then of the root as a container sees it."""
    for mount, group in _groups(controller):
        path = CGROUP / mount / group.strip("/") / file
        try:
            yield path.read_text("utf-8").strip()
        except OSError:
            continue


def _groups(controller: str) -> list[tuple[str, str]]:
    groups = [("", "")]
    try:
        lines = Path("/proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:  # a sandbox may hide it
        return groups
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            groups.insert(0, ("", group))
        elif controller in controllers.split(","):
            groups[:0] = [(controllers, group), (controllers, "")]
    return groups


def oom_kills(counters: Sequence[Path] = OOM_COUNTERS) -> int:
    """Return how many processes the OOM killer has ended; 0 where the kernel has no counter."""
    kills = 0
    for counter in counters:
        with contextlib.suppress(OSError):
            lines = counter.read_text("ascii", "replace").splitlines()
            kills += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return kills
