"""A disk that takes no more: found out, and told."""

from __future__ import annotations

import errno
from pathlib import Path

from pipeline.errors import ConversionError

DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ROOM_BYTES = 1 << 20


def lack_of_room(folder: Path) -> OSError | None:
    """Why no more can be written there: converters that write natively say something else, or nothing."""
    try:
        (folder / "room").write_bytes(bytes(_ROOM_BYTES))
    except OSError as exc:
        return exc if exc.errno in DISK_IS_FULL else None
    return None


def not_written(out: Path, error: OSError) -> ConversionError:
    """The error of a result that can't be written, with the remedy."""
    remedy = "see to it, or name another folder"
    if error.errno in DISK_IS_FULL:
        remedy = "make room for it, or name a folder on another disk"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "name a folder that you may write to"
    return ConversionError(f"{out} can't be written ({error.strerror or error}); {remedy}.")
