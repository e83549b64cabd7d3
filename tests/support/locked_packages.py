"""A lock's packages, put into another environment from that of the tests: nothing is fetched."""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path


def link_locked(lock: Path, environment: Path) -> None:
    """Put them into the virtual environment, without a copy where that can be."""
    here = Path(str(importlib.metadata.distribution("onnxruntime").locate_file("")))
    (there,) = environment.glob("lib/python*/site-packages")
    for name in (line.split("==")[0] for line in lock.read_text("utf-8").splitlines() if "==" in line):
        for file in importlib.metadata.files(name) or ():
            if not file.parts[0].startswith("..") and (here / file).is_file():
                target = there / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.unlink(missing_ok=True)  # pip's and setuptools' own may be there
                _link(here / file, target)


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, or a file of another user's
        shutil.copy2(source, target)
