"""Going on: what a service does after whatever it was sent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.support.service_process import ServiceProcess


@contextlib.contextmanager
def going_on(service: ServiceProcess) -> Iterator[None]:
    """Whatever is sent inside, the same processes answer the next request on both ports, without a fault."""
    pids = [service.process.pid, *service.worker_pids()]
    yield
    assert service.process.poll() is None, service.log
    assert service.predict({"number": "21"})["doubled"] == "42"
    assert service.rpc({"number": "4"}).value[1] == "8"
    assert [service.process.pid, *service.worker_pids()] == pids
    assert "fault of ours" not in service.log
