"""Old Paddle programs, built in a process of their own: Paddle's new executor can't be left again in one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def built_apart(script: str, folder: Path, kind: str) -> Path:
    """`folder/kind`, made by the script with that path as its argument unless it is there."""
    target = folder / kind
    if not target.exists():
        env = os.environ | {"PYTHONPATH": str(_ROOT), "GLOG_minloglevel": "2", "FLAGS_enable_pir_api": "0"}
        command = [sys.executable, "-W", "ignore", script, str(target)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"building {kind} failed:\n{done.stderr[-4000:]}")
    return target
