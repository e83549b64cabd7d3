"""Imports Paddlewheel's packages even if the app's folder has modules of the same names."""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from pathlib import Path

ORIGINALS = ("server", "server-gpu", "client", "app")
MARKS = {
    "pipeline": "front/lifecycle.py",
    "client": "pipeline_client.py",
    "convert": "to_serving/convert_serving.py",
}
"""A file that our package of this name has and another hardly would."""


def refuse_originals() -> None:
    """Raise ImportError if Paddle Serving itself is installed, since its packages have the same names."""
    for name in (f"paddle-serving-{part}" for part in ORIGINALS):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        raise ImportError(
            f"{name} {version} is installed beside paddlewheel-compat, which has the same import names; "
            f"uninstall one: python3 -m pip uninstall {name}"
        )


def claim(*names: str) -> None:
    """Import this project's packages of these names, even if the app's folder has packages of the same names.

    Raises ImportError if the app has already imported its own module under one of these names.
    """
    for name in names:
        path = sys.path
        sys.path = [entry for entry in path if not _hides(Path(entry), name)]
        importlib.invalidate_caches()
        try:
            module = importlib.import_module(name)
        finally:
            sys.path = path
        if not any(Path(folder, MARKS[name]).is_file() for folder in getattr(module, "__path__", ())):
            raise ImportError(
                f"the app's own module {name} ({getattr(module, '__file__', None)}) was imported first and "
                f"hides Paddlewheel's package of that name; rename it"
            )


def _hides(folder: Path, name: str) -> bool:
    """Return whether `folder` on sys.path has another module of this name, which `import` would find."""
    return (folder / f"{name}.py").is_file() or (
        (folder / name).is_dir() and not (folder / name / MARKS[name]).is_file()
    )
