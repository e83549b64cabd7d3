"""`max_concurrency` of a running service; tests/simulation/test_scaling.py has the rule and the way back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.service_process import APPS, PATIENCE_S, ServiceProcess, wait_until


def test_another_worker_starts_while_requests_wait(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    config = {
        "dag": {"is_thread_op": False, "request_timeout": 2 * PATIENCE_S},
        "op": {"echo": {"concurrency": 1, "max_concurrency": 2, "scale_wait": 0.05}},
    }
    with ServiceProcess(APPS / "echo.py", config) as service, ThreadPoolExecutor(1) as pool:
        service.predict({"number": "1"})  # without a run time nothing can be expected
        held = pool.submit(service.predict, {"number": "2", "action": "wait", "argument": str(gate)})
        wait_until(lambda: Path(f"{gate}.waiting").exists(), "the only worker is busy")
        assert service.predict({"number": "3"})["doubled"] == "6"
        gate.touch()
        assert held.result()["doubled"] == "4"
        counts = service.http("/health/ready").json["ops"]["echo"]
        assert (counts["ready"], counts["instances"]) == (2, 2)
        service.wait_for_log("Op echo: requests wait")
