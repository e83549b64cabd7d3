"""A stand-in for the driver's package: two cards, on each of which every worker has 5 MB."""

import os
from pathlib import Path
from types import SimpleNamespace


class NVMLError(Exception):
    pass


def nvmlInit():
    pass


def nvmlDeviceGetCount():
    return 2


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetComputeRunningProcesses(card):
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = [int(pid) for task in tasks for pid in task.read_text().split()]
    return [SimpleNamespace(pid=pid, usedGpuMemory=5_000_000) for pid in [*pids, 1]]
