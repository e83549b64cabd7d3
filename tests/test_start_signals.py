"""Signals that come while a service starts: SIGHUP ends none, Ctrl-C ends it in a line, SIGTERM as ever."""

from __future__ import annotations

import signal

import pytest

from service_process import APPS, ROOT, ServiceProcess

MAIN = ROOT / "pipeline" / "__main__.py"
TOLD = "Interrupted before the service was ready"


@pytest.mark.parametrize(("when", "taken"), [("now", 0), ("later", 1)])
def test_a_hangup_does_not_end_a_service_that_starts(when: str, taken: int) -> None:
    with ServiceProcess(APPS / "signalled.py", arguments=["SIGHUP", when]) as service:
        assert service.predict({"number": "21"})["doubled"] == "42"
        assert service.log.count("Nothing is loaded anew") == taken


def test_a_hangup_does_not_end_a_script_that_is_run_as_a_service() -> None:
    arguments = ["run", "--config", "{config}", str(APPS / "signalled.py"), "SIGHUP", "script"]
    with ServiceProcess(MAIN, arguments=arguments) as service:
        assert service.predict({"number": "21"})["doubled"] == "42"


@pytest.mark.parametrize("when", ["import", "library", "script", "now", "later"])
def test_ctrl_c_ends_a_service_that_starts_in_a_line(when: str) -> None:
    with ServiceProcess(APPS / "signalled.py", arguments=["SIGINT", when], wait=False) as service:
        assert service.exit_code() in (130, -signal.SIGINT)  # of which a shell says 130, too
        assert service.log.splitlines()[-1].endswith(TOLD)
        assert "Traceback" not in service.log


def test_sigterm_ends_a_service_in_order_that_has_begun_to_start() -> None:
    with ServiceProcess(APPS / "signalled.py", arguments=["SIGTERM", "later"], wait=False) as service:
        assert service.exit_code() == 0
