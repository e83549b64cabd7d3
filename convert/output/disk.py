"""Errors of a full disk."""

from __future__ import annotations

import errno
from pathlib import Path

from pipeline.errors import ConversionError

DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ROOM_BYTES = 1 << 20


def find_disk_error(folder: Path) -> OSError | None:
    """Return the error of a full disk; converters that write natively report something else, or nothing."""
    try:
        (folder / "room").write_bytes(bytes(_ROOM_BYTES))
    except OSError as exc:
        return exc if exc.errno in DISK_IS_FULL else None
    return None


def create_write_error(out: Path, error: OSError) -> ConversionError:
    """Return the error of a result that can't be written, with a hint."""
    hint = "see to it, or name another folder"
    if error.errno in DISK_IS_FULL:
        hint = "make room for it, or name a folder on another disk"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "name a folder that you may write to"
    return ConversionError(f"{out} can't be written ({error.strerror or error}); {hint}.")
