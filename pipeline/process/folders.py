"""Folders of processes: the cache, and leftovers of killed processes, which the next process removes.

The owner of a temporary file or folder locks it (flock). The kernel lifts the lock when the owner dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path


def make_held(make: Callable[[], str]) -> tuple[Path, int]:
    """Make a file or folder and lock it. Return its path and the descriptor that holds the lock."""
    while True:
        path = Path(make())
        with contextlib.suppress(OSError):  # another process took it for a leftover before it was locked
            descriptor = _lock(path)
            if path.exists():
                return path, descriptor
            os.close(descriptor)


def remove_leftovers(folder: Path, pattern: str) -> None:
    """Remove all paths that match the pattern, belong to this user and have no lock."""
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            descriptor = _lock(path)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    _remove(path)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def open_to_lock(path: Path, flags: int) -> Iterator[int]:
    """Open a file or folder; its descriptor stays open unless the block raises. Raises OSError for a link."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _lock(path: Path) -> int:
    """Open and lock a file or folder. Raises OSError where another process holds the lock."""
    with open_to_lock(path, os.O_RDONLY) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


_NOWHERE = Path("/proc/no-home-folder")  # can't be written, as nobody's home


def cache_folder(name: str) -> Path:
    """Return the folder of this name in `$XDG_CACHE_HOME/paddlewheel`, or in `~/.cache/paddlewheel` without
    that.

    A container may have a user without a home folder: the returned folder then can't be written.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  # raises nothing
    home = Path(cache) if Path(cache).is_absolute() else _NOWHERE
    return home / "paddlewheel" / name
