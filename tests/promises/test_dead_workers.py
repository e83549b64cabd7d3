"""What workers that have died leave behind in the front."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.service_process import APPS, ROOT, ServiceProcess, wait_until

SIGNALS = {
    signal.SIGRTMIN + 1: "SIGRTMIN+1",
    signal.SIGRTMIN + 5: "SIGRTMIN+5",
    signal.SIGRTMAX - 1: "SIGRTMAX-1",
    signal.SIGRTMAX: "SIGRTMAX",
}
COUNTING = """
import gc, signal, sys

def tell(*_):
    names = [type(each).__name__ for each in gc.get_objects()]
    sys.stdout.write(f"{names.count('WorkerProcess')} processes, {names.count('Instance')} instances\\n")
    sys.stdout.flush()

if "pipeline.front" in " ".join(sys.orig_argv):
    signal.signal(signal.SIGRTMIN, tell)
    gc.disable()
"""


def test_a_worker_that_has_died_is_forgotten_without_a_collection_of_garbage(tmp_path: Path) -> None:
    """Python imports `sitecustomize` in each of its processes."""
    (tmp_path / "sitecustomize.py").write_text(COUNTING, "utf-8")
    with ServiceProcess(APPS / "echo.py", env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}) as service:
        for deaths in range(1, 4):
            service.kill_worker()
            service.wait_for_log("died: killed by SIGKILL", deaths)
            wait_until(lambda: service.metric("paddlewheel_op_ready_instances") == 1, "it has a successor")

        def counted() -> bool:
            service.process.send_signal(signal.SIGRTMIN)
            return "[front stdout] 1 processes, 1 instances\n" in service.log

        wait_until(counted, "the dead are forgotten", on_timeout=lambda: service.log)


def test_a_worker_that_dies_of_a_real_time_signal_is_replaced_and_named() -> None:
    """Python has names for the first and the last of these signals only."""
    config = {"dag": {"is_thread_op": False}, "op": {"echo": {"concurrency": 2}}}
    with ServiceProcess(APPS / "echo.py", config) as service:
        for number, name in SIGNALS.items():
            service.wait_until_ready(every_instance=True)
            os.kill(service.worker_pids()[0], number)
            service.wait_for_log(f"died: killed by {name}\n")
        service.wait_until_ready(every_instance=True)
        assert service.predict({"number": "21"})["doubled"] == "42"
        service.terminate()
        assert service.exit_code() == 0
