"""The environment of a process: CPU cores, memory limits, variables of native libraries, NumPy's version."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.errors import ConfigError

# Only while unset, so that a user may ask for something else.
FRONT_PROCESS = {
    "GRPC_VERBOSITY": "NONE",  # it would log every stranger's bad handshake, without a bound
    # gRPC allocates in a dozen threads, and glibc has a heap for each, of which none gives memory back.
    "MALLOC_ARENA_MAX": "2",
}
MODEL_PROCESS = {
    # Threads that spin while they wait starve the front, and other workers, of their core.
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime 1.31 keeps an id in the home folder, and tells its makers
    "GLOG_minloglevel": "2",  # Paddle's native log; 2 lets errors through
    # GiB of freed tensors that Paddle gathers before it wakes a thread to give them back. 0 wakes the thread
    # for each: a 2 x 128 BERT then takes some 1.5 times the CPU. Small batches keep theirs, see
    # pipeline/engines/paddle/session.py.
    "FLAGS_eager_delete_tensor_gb": "0.0625",
    # glibc maps every block over 32 MB afresh, gives the top of the heap back, and has the kernel clear both
    # again at the next run: up to half of the CPU of a large batch (bench/worker_memory.py). Blocks up to
    # 256 MB stay in the heap.
    "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
}


def set_variables() -> None:
    """Set environment variables for a process that runs models, unless the user has set them.

    Libraries that are already loaded ignore them.
    """
    for name, value in MODEL_PROCESS.items():
        os.environ.setdefault(name, value)


YOUNG_OBJECTS = 50_000  # allocations between two collections; Python's 700 would run several a millisecond


def settle_memory() -> None:
    """Exclude all objects made so far from garbage collection, and make collections rarer.

    Call this function at the end of start-up.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)


def trim_heap() -> None:
    """Return free pages of glibc's heaps to the operating system (malloc_trim(3)).

    Without this call, glibc only returns pages at the ends of its heaps.
    """
    ctypes.CDLL(None).malloc_trim(0)


def release_memory() -> None:
    """Run the garbage collector, and return free memory to the operating system.

    Frees reference cycles, such as the traceback of a rejected request.
    """
    gc.collect()
    trim_heap()


CGROUP = Path("/sys/fs/cgroup")
# Counters of the OOM killer: cgroup v2 and v1 as a container sees its own, and the machine's.
OOM_COUNTERS = (
    CGROUP / "memory.events",
    CGROUP / "memory/memory.oom_control",
    Path("/proc/vmstat"),
)


def usable_cores() -> int:
    """Return how many cores this process can keep busy, at least 1, by CPU affinity and cgroup quota."""
    quota = cpu_quota()
    return cores() if quota is None else max(1, min(cores(), math.ceil(quota)))


def cores() -> int:
    """Return the number of cores in this process's CPU affinity."""
    return len(os.sched_getaffinity(0))


def cpu_quota() -> float | None:
    """Return the CPU quota of the cgroup (version 2 or 1), in cores; None without a limit."""
    for text in limits("cpu.max", "cpu"):
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit():
            return int(quota) / int(period)
    quotas = (text for text in limits("cpu.cfs_quota_us", "cpu") if text.isdigit())
    periods = (text for text in limits("cpu.cfs_period_us", "cpu") if text.isdigit())
    return next((int(quota) / int(period) for quota, period in zip(quotas, periods, strict=False)), None)


def limits(file: str, controller: str) -> Iterator[str]:
    """Yield the text of a cgroup control file, first of this process's group, then of the root group.

    `controller` is the cgroup v1 controller. Missing files are skipped.
    """
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


def available_memory() -> int:
    """Return how many bytes this process can still allocate, by the machine's and the cgroups' limits."""
    available = [_find_field(Path("/proc/meminfo").read_text("ascii"), "MemAvailable:") << 10]
    for limit_file, used_file, cache_field in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        files = (limits(file, "memory") for file in (limit_file, used_file, "memory.stat"))
        for limit, used, statistics in zip(*files, strict=False):
            if limit.isdigit() and used.isdigit():  # the kernel gives the inactive page cache back
                available.append(int(limit) - int(used) + _find_field(statistics, cache_field))
    return max(0, min(available))


def _find_field(text: str, name: str) -> int:
    """Return the number in the line `NAME NUMBER` of a text; 0 without such a line."""
    return next((int(line.split()[1]) for line in text.splitlines() if line.split()[:1] == [name]), 0)


def oom_kills(counters: Sequence[Path] = OOM_COUNTERS) -> int:
    """Return how many processes the kernel's OOM killer has killed so far; 0 if there is no counter."""
    kills = 0
    for counter in counters:
        with contextlib.suppress(OSError):
            lines = counter.read_text("ascii", "replace").splitlines()
            kills += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return kills


REMEDY = (
    "Put that back with python3 -m pip install 'numpy>=2'; where paddlenlp has brought NumPy 1, install it "
    "with --constraint requirements/paddlenlp-constraints.txt"
)


def flaw_of_numpy(version: str) -> str:
    """Return an error message if NumPy is older than version 2, the minimum for a service; else empty."""
    return (
        ""
        if int(version.partition(".")[0]) >= 2
        else f"NumPy {version} is installed; a service needs NumPy 2"
    )


def require_numpy_2(version: str) -> None:
    """Raise ConfigError, with the command to install NumPy 2, for an older version of NumPy."""
    if flaw := flaw_of_numpy(version):
        raise ConfigError(f"{flaw}. {REMEDY}.")
