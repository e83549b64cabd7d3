"""The cache folder, and temporary files of killed processes, which the next process removes.

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
    """Create a temporary file or folder with `make`, which returns the path, and lock it.

    Returns its path and the file descriptor that holds the lock.
    """
    while True:
        path = Path(make())
        with contextlib.suppress(OSError):  # another process took it for a leftover before it was locked
            descriptor = _lock(path)
            if path.exists():
                return path, descriptor
            os.close(descriptor)


def remove_leftovers(folder: Path, pattern: str) -> None:
    """Remove this user's files and folders that match the pattern and that no process locks.

    They are left from killed processes.
    """
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
    """Open a file or folder for locking; the descriptor stays open after the block, unless the block raises.

    Raises OSError for a symbolic link.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _lock(path: Path) -> int:
    """Open and lock a file or folder, and return its descriptor.

    Raises OSError if another process holds the lock.
    """
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
    """Return the path of this project's cache folder `name`, below $XDG_CACHE_HOME or ~/.cache.

    A container may have a user without a home folder: the returned folder then can't be written.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  # raises nothing
    home = Path(cache) if Path(cache).is_absolute() else _NOWHERE
    return home / "paddlewheel" / name
