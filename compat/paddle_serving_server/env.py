"""The folder in which Paddle Serving's commands look for services: SERVING_HOME or the working folder."""

from __future__ import annotations

import os
from pathlib import Path


def _get_serving_home() -> str:
    """Return the folder in the variable SERVING_HOME, by default the working folder.

    Raise RuntimeError if SERVING_HOME is a file.
    """
    home = os.environ.get("SERVING_HOME") or str(Path.cwd())
    if Path(home).exists() and not Path(home).is_dir():
        raise RuntimeError(f"The environment variable SERVING_HOME {home} is not a directory.")
    return home


SERVING_HOME = _get_serving_home()
CONF_HOME = f"{SERVING_HOME}/"
