"""Creates a virtual environment for each peer at its first run, with our Paddle and tokenizer."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from bench.load import CannotMeasure
from bench.running import ROOT

FOLDER = ROOT / "build" / "peers"
PINS = ROOT / "requirements" / "peers"
_MAX_LINES = 12  # of pip's output when it fails


def environment(name: str, python: str | None = None) -> Path:
    """Return the folder of a peer's environment, with the packages of requirements/peers.

    Raises CannotMeasure.

    python: another interpreter, which can't use our packages and gets all of its own.
    """
    folder = FOLDER / name
    installed = folder / "installed.txt"
    pins = (PINS / f"{name}.txt").read_text(encoding="utf-8")
    if not installed.is_file() or installed.read_text(encoding="utf-8") != pins:
        _run(name, [python or sys.executable, "-m", "venv", "--clear", str(folder)])
        _run(name, [str(ROOT / "docker" / "install.sh"), "peer", str(folder), name])
        (packages,) = folder.glob("lib/python*/site-packages")
        # After the peer's own packages, and written last: pip would take them for installed packages.
        paths = [str(ROOT)] if python else [str(ROOT), sysconfig.get_path("purelib")]
        (packages / "paddlewheel.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
        installed.write_text(pins, encoding="utf-8")
    return folder


def _run(name: str, command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError as exc:
        raise CannotMeasure(f"build/peers/{name} can't be made: {exc}") from exc
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()][-_MAX_LINES:]
        raise CannotMeasure("\n".join([f"build/peers/{name} can't be made: {' '.join(command)}", *lines]))
