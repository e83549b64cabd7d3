"""Telemetry that raises in the front and in workers: requests are answered without it, and the log tells."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.service_process import APPS, ROOT, ServiceProcess

BROKEN = """
from pipeline.front.metrics import access_log, metrics
from pipeline.front.scheduler import batcher, gauges
from pipeline.worker import executor, hooks


def broken(*args, **kwargs):
    raise RuntimeError("telemetry is broken")


metrics.bisect_left = metrics.RunFigures.add = metrics.is_clients = broken
access_log.one_line = batcher.Pace.record = gauges.resident_bytes = broken
metrics._NO_TOKEN = None
access_log._mean_ms = hooks.format_user_traceback = executor.max = broken
"""
LEFT_OUT = (  # by the front, then by the worker
    "Scheduler._record_end",
    "Distribution.observe_all",
    "OpFigures.record_run",
    "Failures.count",
    "AccessLog.refused",
    "AccessLog.log_request",
    "RequestTimings.header",
    "Batcher._note_pace",
    "_Watched._families",
    "Tracer._log_growth",
    "Hooks._log_exception",
    "Executor._timings",
)


def test_telemetry_that_raises_fails_no_request_and_is_logged(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BROKEN, "utf-8")
    dag = {"use_profile": True, "tracer": {"interval_s": 1}, "http_errors": "status"}
    config = {"dag": dag, "op": {"echo": {"batch_size": 4}}, "logging": {"level": "DEBUG"}}
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    with ServiceProcess(APPS / "echo.py", config, env={"PYTHONPATH": path}) as service:
        for number in range(3):
            assert service.predict({"number": str(number)})["doubled"] == str(2 * number)
            assert service.rpc({"number": str(number)}).err_no == 0
        assert service.ask({"action": "refuse", "argument": "no"})["err_no"] == 5000
        assert service.ask({"action": "raise", "argument": "no"})["err_no"] == 10000
        metrics = service.http("/metrics")
        assert metrics.status == 200 and b"paddlewheel_requests_total" in metrics.body
        assert service.metric("paddlewheel_op_restarts_total") == 0
        for name in LEFT_OUT:
            service.wait_for_log(f"A fault of ours in {name}\n")
