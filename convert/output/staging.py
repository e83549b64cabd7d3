"""Atomic results: a folder is made beside its place, moved there whole, and stamped with its sources."""

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
_ENDING = "converting"
_ROOM_BYTES = 1 << 20
_AT_FDCWD, _EXCHANGE = -100, 2  # of renameat2(2)
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
        raise _not_written(out, exc) from exc
    try:
        made = scratch / "new"
        made.mkdir()
        yield made
        _put(made, out, scratch / "old")
    except ServingError as exc:
        full = _lack_of_room(scratch)
        if full is not None:
            raise _not_written(out, full) from exc
        # The folder goes away again; the caller knows the other name.
        exc.args = (exc.message.replace(str(made), str(out)), *exc.args[1:])
        raise
    except OSError as exc:
        if exc.filename is not None and exc.errno not in DISK_IS_FULL and not _within(exc.filename, scratch):
            why = f"{exc.filename} can't be read ({exc.strerror}); see to it and run again."
            raise ConversionError(why) from exc
        raise _not_written(out, exc) from exc
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _put(made: Path, out: Path, aside: Path) -> None:
    """Move `made` to `out`, at once where the file system can exchange folders, so that one always stands."""
    if not out.exists():
        made.rename(out)
    elif ctypes.CDLL(None).renameat2(_AT_FDCWD, os.fsencode(made), _AT_FDCWD, os.fsencode(out), _EXCHANGE):
        out.rename(aside)
        made.rename(out)


def _lack_of_room(folder: Path) -> OSError | None:
    """Why no more can be written there: converters that write natively say something else, or nothing."""
    try:
        (folder / "room").write_bytes(bytes(_ROOM_BYTES))
    except OSError as exc:
        return exc if exc.errno in DISK_IS_FULL else None
    return None


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


def _not_written(out: Path, error: OSError) -> ConversionError:
    remedy = "see to it, or name another folder"
    if error.errno in DISK_IS_FULL:
        remedy = "make room for it, or name a folder on another disk"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "name a folder that you may write to"
    return ConversionError(f"{out} can't be written ({error.strerror or error}); {remedy}.")


def check_replaceable(out: Path) -> None:
    """Raise ConversionError unless `out` is absent, empty, or a result of `convert`."""
    if out.is_dir():
        if any(out.iterdir()) and not (out / STAMP_FILE).is_file():
            raise ConversionError(f"{out} holds files that convert didn't write; name another folder.")
    elif out.exists() or out.is_symlink():
        raise ConversionError(f"{out} is not a folder; name another place for the result.")


def write_stamp(directory: Path, fingerprint: str, facts: Mapping[str, object]) -> None:
    """Store what a result was made from, and `facts` about it, in its convert.json."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    sizes = {path.relative_to(directory).as_posix(): path.stat().st_size for path in files}
    stamp = {"fingerprint": fingerprint, **facts, "files": sizes}
    text = json.dumps(stamp, indent=2, ensure_ascii=False)
    (directory / STAMP_FILE).write_text(f"{text}\n", encoding="utf-8")


def restamp(directory: Path, *, current: bool) -> None:
    """Bring the stamp of a result up to its files as they are now; not `current`: it is to be made again."""
    path = directory / STAMP_FILE
    if not path.is_file():
        return
    stamp = json.loads(path.read_text(encoding="utf-8"))
    facts = {key: value for key, value in stamp.items() if key not in ("fingerprint", "files")}
    path.unlink()
    write_stamp(directory, stamp["fingerprint"] if current else "", facts)


def is_current(out: Path, fingerprint: str) -> bool:
    """Whether `out` was made from exactly this, and all its files still stand."""
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


def fingerprint_of(files: Iterable[Path], settings: Mapping[str, object]) -> str:
    """A SHA-256 over the contents of files, in the order given, and over settings that JSON can hold."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for path in files:
        digest.update(f"\n{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
