"""The running services of this package: whether they can still start workers."""

from __future__ import annotations

from pipeline.launch.doctor.finding import Finding, note
from pipeline.process.processes import WORKER, RunningService, module_arguments, running_services


def check_running() -> list[Finding]:
    """Return a finding for each service whose package was changed since its start."""
    try:
        from pipeline.messages.protocol_version import (
            PROTOCOL_VERSION,
        )  # the doctor also runs without msgspec
    except ImportError:
        return []
    remedy = "Restart the service: running workers serve on, but none of them can be replaced."
    return [
        note("Running service", f"{service}: the installed package has changed since its start", remedy)
        for service in running_services()
        if not _get_versions(service) <= {PROTOCOL_VERSION}
    ]


def _get_versions(service: RunningService) -> set[str]:
    """Return the protocol versions that the service gave its workers; empty for one of another package."""
    return {arguments[0] for pid in service.worker_pids() if (arguments := module_arguments(pid, WORKER))}
