"""Signals that come while a service starts: SIGHUP ends none, Ctrl-C ends it in a line, SIGTERM as ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service_process import APPS, ROOT, ServiceProcess

MAIN = ROOT / "pipeline" / "__main__.py"
TOLD = "Interrupted before the service was ready"
# Ctrl-C while the command loads a library, which makes another error of what a handler raises, as one of C.
INTERRUPTED_LIBRARY = """
import os, signal, sys

class Library:
    def find_spec(self, name, path=None, target=None):
        if name == "pipeline.config.config_file":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                raise ImportError("the library can't be loaded") from None

sys.meta_path.insert(0, Library())
"""
IMPORTED = """
import signal, sys
before = sys.excepthook, *map(signal.getsignal, signal.valid_signals())
from pipeline import Op, WebService
print((sys.excepthook, *map(signal.getsignal, signal.valid_signals())) == before)
"""


def run(*arguments: str) -> list[str]:
    """The arguments of `paddlewheel` that run the signalled script."""
    return ["run", "--config", "{config}", str(APPS / "signalled.py"), *arguments]


@pytest.mark.parametrize(("when", "taken"), [("now", 0), ("later", 1)])
def test_a_hangup_does_not_end_a_service_that_starts(when: str, taken: int) -> None:
    with ServiceProcess(APPS / "signalled.py", arguments=["SIGHUP", when]) as service:
        assert service.predict({"number": "21"})["doubled"] == "42"
        service.wait_for_log("Nothing is loaded anew", taken)
        assert service.log.count("Nothing is loaded anew") == taken


def test_a_hangup_does_not_end_a_script_that_is_run_as_a_service() -> None:
    with ServiceProcess(MAIN, arguments=run("SIGHUP", "script")) as service:
        assert service.predict({"number": "21"})["doubled"] == "42"


def is_told_in_a_line(service: ServiceProcess) -> bool:
    assert service.exit_code() in (130, -signal.SIGINT)  # of which a shell says 130, too
    return service.log.splitlines()[-1].endswith(TOLD) and "Traceback" not in service.log


@pytest.mark.parametrize("when", ["made", "now", "later"])
def test_ctrl_c_ends_a_service_that_starts_in_a_line(when: str) -> None:
    with ServiceProcess(APPS / "signalled.py", arguments=["SIGINT", when], wait=False) as service:
        assert is_told_in_a_line(service), service.log


@pytest.mark.parametrize("when", ["library", "script"])
def test_ctrl_c_ends_a_script_that_is_run_as_a_service_in_a_line_from_its_first_import_on(when: str) -> None:
    with ServiceProcess(MAIN, arguments=run("SIGINT", when), wait=False) as service:
        assert is_told_in_a_line(service), service.log


def test_ctrl_c_ends_the_command_that_still_loads_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED_LIBRARY)
    env = {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    with ServiceProcess(MAIN, arguments=run("SIGINT", "never"), env=env, wait=False) as service:
        assert is_told_in_a_line(service), service.log


def test_sigterm_ends_a_service_in_order_that_has_begun_to_start() -> None:
    with ServiceProcess(APPS / "signalled.py", arguments=["SIGTERM", "later"], wait=False) as service:
        assert service.exit_code() == 0


def test_importing_changes_what_no_signal_and_no_error_does() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True"]
