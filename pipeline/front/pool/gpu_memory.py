"""GPU memory by process, as the driver tells through the package nvidia-ml-py where that is installed."""

from __future__ import annotations

import logging
from typing import Any

from pipeline.config.config_file import ServiceConfig

log = logging.getLogger(__name__)

_ON_CARDS = (1, 2)  # of `device_type`: gpu, tensorRT


class GpuMemory:
    """The driver's account of GPU memory, over all cards; open from the constructor on."""

    def __init__(self, nvml: Any) -> None:
        """Raises nvml.NVMLError without a driver."""
        self._nvml = nvml
        nvml.nvmlInit()
        self._cards = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]

    def of_processes(self) -> dict[int, int]:
        """Bytes by process id, over all cards."""
        used: dict[int, int] = {}
        for card in self._cards:
            try:
                processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(card)
            except self._nvml.NVMLError:  # a card that has failed; its workers will say so themselves
                continue
            for process in processes:
                used[process.pid] = used.get(process.pid, 0) + (process.usedGpuMemory or 0)
        return used


def open_gpu_memory(config: ServiceConfig) -> GpuMemory | None:
    """Return the account of GPU memory; None where no Op runs on a GPU, or NVML is missing."""
    confs = [op.local_service_conf for op in config.op.values()]
    if not any(conf and (conf.devices or conf.device_type in _ON_CARDS) for conf in confs):
        return None
    try:
        import pynvml  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    try:
        return GpuMemory(pynvml)
    except pynvml.NVMLError as exc:
        log.warning("GPU memory is not told: %s", exc)
        return None
