"""Atomic results: a folder is made beside its place, and moved there whole."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from convert.output.disk import DISK_IS_FULL, lack_of_room, not_written
from convert.output.stamp import check_replaceable
from pipeline.errors import ConversionError, ServingError

_ENDING = "converting"
_AT_FDCWD, _EXCHANGE = -100, 2  # of renameat2(2)


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `out` when the block ends, and vanishes when the block raises.

    A folder already at `out` is replaced only if it is empty or was written by `convert` (has its stamp),
    and only at the end. What a killed conversion to `out` left beside it is removed first.
    """
    check_replaceable(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _clear_away(out)
        scratch = Path(tempfile.mkdtemp(f".{_ENDING}", f".{out.name}.", out.parent))
        lock = _lock(scratch)
    except OSError as exc:
        raise not_written(out, exc) from exc
    try:
        made = scratch / "new"
        made.mkdir()
        yield made
        _exchange(made, out, scratch / "old")
    except ServingError as exc:
        full = lack_of_room(scratch)
        if full is not None:
            raise not_written(out, full) from exc
        # The folder goes away again; the caller knows the other name.
        exc.args = (exc.message.replace(str(made), str(out)), *exc.args[1:])
        raise
    except OSError as exc:
        if exc.filename is not None and exc.errno not in DISK_IS_FULL and not _within(exc.filename, scratch):
            why = f"{exc.filename} can't be read ({exc.strerror}); see to it and run again."
            raise ConversionError(why) from exc
        raise not_written(out, exc) from exc
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _exchange(made: Path, out: Path, aside: Path) -> None:
    """Move `made` to `out`, at once where the file system can exchange folders, so that one always stands."""
    if not out.exists():
        made.rename(out)
    elif ctypes.CDLL(None).renameat2(_AT_FDCWD, os.fsencode(made), _AT_FDCWD, os.fsencode(out), _EXCHANGE):
        out.rename(aside)
        made.rename(out)


def _lock(folder: Path) -> int | None:
    """Held by the process that makes a result there, and released by the kernel however that ends.

    None where another process holds it, or the file system has no locks.
    """
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _clear_away(out: Path) -> None:
    """Remove what a killed conversion to `out` left; put an old result back that it had just put aside."""
    left = re.compile(rf"\.{re.escape(out.name)}\.\w{{8}}\.{_ENDING}")
    for folder in out.parent.iterdir():
        lock = _lock(folder) if left.fullmatch(folder.name) else None
        if lock is None:
            continue
        if (folder / "old").exists() and not out.exists():
            (folder / "old").rename(out)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _within(file: object, folder: Path) -> bool:
    return str(file).startswith(str(folder))
