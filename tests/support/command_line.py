"""Commands as a user gives them, and what they print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.service_process import PATIENCE_S, ROOT


def python(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Python with these arguments, in the project's folder."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE_S
    )


def paddlewheel(
    *arguments: str | Path, cwd: Path | None = None, active: bool = True
) -> subprocess.CompletedProcess[str]:
    """active: whether this interpreter's environment is the terminal's."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}" if active else os.defpath
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": path},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence on stderr of a command that left with exit code 2."""
    assert done.returncode == 2, done
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    return done.stderr
