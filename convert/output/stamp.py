"""The stamp of a result, convert.json, with the fingerprint of its sources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.errors import ConversionError

STAMP_FILE = "convert.json"


def check_replaceable(out: Path) -> None:
    """Raise ConversionError unless `out` is absent, empty, or a result of `convert`."""
    if out.is_dir():
        if any(out.iterdir()) and not (out / STAMP_FILE).is_file():
            raise ConversionError(f"{out} holds files that convert didn't write; name another folder.")
    elif out.exists() or out.is_symlink():
        raise ConversionError(f"{out} is not a folder; name another place for the result.")


def write_stamp(directory: Path, fingerprint: str, facts: Mapping[str, object]) -> None:
    """Write convert.json with the fingerprint of a result's sources and `facts` about it."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    sizes = {path.relative_to(directory).as_posix(): path.stat().st_size for path in files}
    stamp = {"fingerprint": fingerprint, **facts, "files": sizes}
    text = json.dumps(stamp, indent=2, ensure_ascii=False)
    (directory / STAMP_FILE).write_text(f"{text}\n", encoding="utf-8")


def restamp(directory: Path, *, current: bool) -> None:
    """Update the stamp to the present files; without `current` the next conversion writes it again."""
    path = directory / STAMP_FILE
    if not path.is_file():
        return
    stamp = json.loads(path.read_text(encoding="utf-8"))
    facts = {key: value for key, value in stamp.items() if key not in ("fingerprint", "files")}
    path.unlink()
    write_stamp(directory, stamp["fingerprint"] if current else "", facts)


def is_current(out: Path, fingerprint: str) -> bool:
    """Return whether `out` has this fingerprint and all its files."""
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
    """Return a SHA-256 of the contents of files, in order, and of JSON settings."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for path in files:
        digest.update(f"\n{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
