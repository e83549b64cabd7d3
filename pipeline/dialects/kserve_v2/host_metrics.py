"""The gauges of the machine that Triton has beside those of models: its processors and memory, `nv_cpu_*`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_GAUGES = {
    "nv_cpu_utilization": "CPU utilization rate [0.0 - 1.0]",
    "nv_cpu_memory_total_bytes": "CPU total memory (RAM), in bytes",
    "nv_cpu_memory_used_bytes": "CPU used memory (RAM), in bytes",
}
_IDLE = slice(3, 5)  # of the times in /proc/stat: idle and waiting for disks


class HostMetrics:
    """Read when asked. The utilization is that since the last time, at first since the machine's start."""

    def __init__(self) -> None:
        self._before = 0, 0

    def text(self) -> str:
        """In Prometheus' text format; nothing where the kernel does not tell."""
        try:
            told = dict(zip(_GAUGES, self._values(), strict=True))
        except (OSError, LookupError, ValueError):
            return ""
        return "".join(
            f"# HELP {name} {_GAUGES[name]}\n# TYPE {name} gauge\n{name} {value}\n"
            for name, value in told.items()
        )

    def _values(self) -> Iterator[float]:
        times = [int(ticks) for ticks in Path("/proc/stat").read_text("ascii").splitlines()[0].split()[1:9]]
        idle, total = sum(times[_IDLE]), sum(times)
        idle_before, total_before = self._before
        self._before = idle, total
        passed = total - total_before
        busy = 1 - (idle - idle_before) / passed if passed else 0.0
        yield min(max(0.0, busy), 1.0)  # the kernel's count of waiting may go back
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        memory = {name: int(value.split()[0]) * 1024 for name, value in (one.split(":") for one in lines)}
        yield memory["MemTotal"]
        yield memory["MemTotal"] - memory["MemAvailable"]
