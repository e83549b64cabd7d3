"""What pyproject.toml says of every test: warnings are errors, time is limited, all processes are covered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.service_process import APPS, ROOT

SERVED = """
import sys
sys.path.insert(0, {root!r})
from tests.support.service_process import ServiceProcess
with ServiceProcess({app!r}) as service:
    assert service.ask({{"text": "a"}})["err_no"] == 0
"""
# Front, worker, and the script before it has become the front.
COVERED = ("pipeline/front/pool/worker_process.py", "pipeline/worker/executor.py", "pipeline/api/service.py")


def outcome(folder: Path, test: str, *options: str) -> tuple[int, str]:
    """Exit code and output of a test that is run as those of this folder are."""
    file = folder / "test_it.py"
    file.write_text(test, "utf-8")
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *options, str(file)], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout


def test_a_warning_is_an_error(tmp_path: Path) -> None:
    test = "import warnings\ndef test_it():\n    warnings.warn('old', DeprecationWarning)\n"
    code, said = outcome(tmp_path, test)
    assert code == 1
    assert "DeprecationWarning: old" in said


def test_a_test_that_hangs_is_ended(tmp_path: Path) -> None:
    test = "import threading\ndef test_it():\n    threading.Event().wait()\n"
    code, said = outcome(tmp_path, test, "-o", "timeout=0.5")
    assert code == 1
    assert "Timeout" in said


def test_every_test_has_a_limit(pytestconfig: object) -> None:
    assert 0 < float(pytestconfig.getini("timeout")) <= 300  # type: ignore[attr-defined]


def test_lines_run_by_front_and_workers_count_as_covered(tmp_path: Path) -> None:
    program, data, report = tmp_path / "served.py", tmp_path / "data", tmp_path / "report.json"
    program.write_text(SERVED.format(root=str(ROOT), app=str(APPS / "echo.py")), "utf-8")
    outer = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    env = {**outer, "COVERAGE_FILE": str(data)}
    for arguments in (["run", str(program)], ["combine", "--quiet"], ["json", "-q", "-o", str(report)]):
        command = [sys.executable, "-m", "coverage", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    files = json.loads(report.read_text())["files"]
    for name in COVERED:
        assert files[name]["summary"]["percent_covered"] > 30, name
