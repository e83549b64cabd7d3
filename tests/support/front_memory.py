"""The memory of a service's front process."""

from __future__ import annotations

from tests.support.service_process import ServiceProcess


def front_bytes(service: ServiceProcess) -> float:
    """What it takes now, as the service itself says."""
    return service.metric("paddlewheel_resident_bytes", process="front")
