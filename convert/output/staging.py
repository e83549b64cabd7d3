"""Output folders: filled as temporary folders, moved to their place at once, stamped with their sources.

The stamp is convert.json, with a hash of the sources and settings, and the sizes of the files.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import ConversionError, ServingError

STAMP_FILE = "convert.json"


def check_replaceable(out: Path) -> None:
    """Raise ConversionError unless `out` is absent, an empty folder, or an output folder of `convert`."""
    if out.is_dir():
        if any(out.iterdir()) and not (out / STAMP_FILE).is_file():
            raise ConversionError(f"{out} holds files that convert didn't write; name another folder.")
    elif out.exists() or out.is_symlink():
        raise ConversionError(f"{out} is not a folder; name another place for the result.")


def write_stamp(directory: Path, fingerprint: str, facts: Mapping[str, object]) -> None:
    """Write convert.json to an output folder: the hash of its sources, `facts`, and all file sizes."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    sizes = {path.relative_to(directory).as_posix(): path.stat().st_size for path in files}
    stamp = {"fingerprint": fingerprint, **facts, "files": sizes}
    text = json.dumps(stamp, indent=2, ensure_ascii=False)
    (directory / STAMP_FILE).write_text(f"{text}\n", encoding="utf-8")


def restamp(directory: Path, *, current: bool) -> None:
    """Update the file sizes in convert.json.

    Without `current` also clear the hash, so that the next conversion writes the folder again. A folder
    without convert.json is not changed.
    """
    path = directory / STAMP_FILE
    if not path.is_file():
        return
    stamp = json.loads(path.read_text(encoding="utf-8"))
    facts = {key: value for key, value in stamp.items() if key not in ("fingerprint", "files")}
    path.unlink()
    write_stamp(directory, stamp["fingerprint"] if current else "", facts)


def is_current(out: Path, fingerprint: str) -> bool:
    """Return whether `out` has this hash in its convert.json and all files have the recorded sizes."""
    try:
        stamp = json.loads((out / STAMP_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(stamp, dict) or stamp.get("fingerprint") != fingerprint:
        return False
    sizes = stamp.get("files")
    return isinstance(sizes, dict) and all(_has_size(out / name, size) for name, size in sizes.items())


def _has_size(path: Path, size: object) -> bool:
    return path.is_file() and path.stat().st_size == size


def hash_sources(files: Iterable[Path], settings: Mapping[str, object]) -> str:
    """Return a SHA-256 of the names and contents of files, in order, and of JSON settings."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for path in files:
        digest.update(f"\n{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ROOM_BYTES = 1 << 20


def find_disk_error(folder: Path) -> OSError | None:
    """Return the error of a full disk, detected by writing 1 MB to `folder`; None if the disk is not full.

    Native converters report a full disk as another error, or not at all.
    """
    try:
        (folder / "room").write_bytes(bytes(_ROOM_BYTES))
    except OSError as exc:
        return exc if exc.errno in DISK_IS_FULL else None
    return None


def create_write_error(out: Path, error: OSError) -> ConversionError:
    """Return a ConversionError about an output folder that can't be written, with a hint for the user."""
    hint = "see to it, or name another folder"
    if error.errno in DISK_IS_FULL:
        hint = "make room for it, or name a folder on another disk"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "name a folder that you may write to"
    return ConversionError(f"{out} can't be written ({error.strerror or error}); {hint}.")


_ENDING = "converting"
_AT_FDCWD, _EXCHANGE = -100, 2  # of renameat2(2)


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """Context manager: yield a temporary folder that becomes `out` at the end.

    It is deleted if the block raises. A folder already at `out` is replaced only if it is empty or was
    written by `convert` (has convert.json), and only at the end. Leftovers of a killed conversion to `out`
    are removed first. Raises ConversionError if `out` can't be written.
    """
    check_replaceable(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _clear_away(out)
        scratch = Path(tempfile.mkdtemp(f".{_ENDING}", f".{out.name}.", out.parent))
        lock = _lock(scratch)
    except OSError as exc:
        raise create_write_error(out, exc) from exc
    try:
        result = scratch / "new"
        result.mkdir()
        yield result
        _exchange(result, out, scratch / "old")
    except ServingError as exc:
        full = find_disk_error(scratch)
        if full is not None:
            raise create_write_error(out, full) from exc
        # The caller knows `out`, not the temporary folder.
        exc.args = (exc.message.replace(str(result), str(out)), *exc.args[1:])
        raise
    except OSError as exc:
        if exc.filename is not None and exc.errno not in DISK_IS_FULL and not _within(exc.filename, scratch):
            why = f"{exc.filename} can't be read ({exc.strerror}); see to it and run again."
            raise ConversionError(why) from exc
        raise create_write_error(out, exc) from exc
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _exchange(result: Path, out: Path, aside: Path) -> None:
    """Move `result` to `out`, atomically if the file system can exchange folders.

    An older folder at `out` moves to `result` or `aside`.
    """
    if not out.exists():
        result.rename(out)
    elif ctypes.CDLL(None).renameat2(_AT_FDCWD, os.fsencode(result), _AT_FDCWD, os.fsencode(out), _EXCHANGE):
        out.rename(aside)
        result.rename(out)


def _lock(folder: Path) -> int | None:
    """Lock a folder and return the file descriptor; the kernel releases the lock when this process ends.

    Returns None if another process has the lock, or the file system has no locks.
    """
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _clear_away(out: Path) -> None:
    """Remove leftovers of a killed conversion to `out`; restore an old result that it had moved aside."""
    leftover = re.compile(rf"\.{re.escape(out.name)}\.\w{{8}}\.{_ENDING}")
    for folder in out.parent.iterdir():
        lock = _lock(folder) if leftover.fullmatch(folder.name) else None
        if lock is None:
            continue
        if (folder / "old").exists() and not out.exists():
            (folder / "old").rename(out)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _within(file: object, folder: Path) -> bool:
    return str(file).startswith(str(folder))
