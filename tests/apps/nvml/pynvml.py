"""A stand-in for the driver's package: two cards, on each of which every worker has 5 MB."""

import itertools
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


def nvmlDeviceGetUUID(card):
    return f"GPU-{card}"


def nvmlDeviceGetUtilizationRates(card):
    return SimpleNamespace(gpu=25 * (card + 1), memory=10)


def nvmlDeviceGetMemoryInfo(card):
    return SimpleNamespace(total=80_000_000_000, used=1_000_000_000 * (card + 1), free=0)


def nvmlDeviceGetPowerUsage(card):
    if card == 1:
        raise NVMLError("Not Supported")
    return 123_500


def nvmlDeviceGetEnforcedPowerLimit(card):
    return 700_000


def nvmlDeviceGetTotalEnergyConsumption(card):
    return next(_energies[card])


_energies = [itertools.count(5_000_000, 2_500), itertools.count(0, 1_000)]  # in millijoules
