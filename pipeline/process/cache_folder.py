"""Where what can be made again is kept between starts."""

from __future__ import annotations

import os
from pathlib import Path

_NOWHERE = Path("/proc/no-home-folder")  # can't be written, as nobody's home


def cache_folder(name: str) -> Path:
    """Return the folder of this name in `$XDG_CACHE_HOME/paddlewheel`, or in `~/.cache/paddlewheel` without
    that.

    A container may have a user without a home folder: the returned folder then can't be written.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  # raises nothing
    home = Path(cache) if Path(cache).is_absolute() else _NOWHERE
    return home / "paddlewheel" / name
