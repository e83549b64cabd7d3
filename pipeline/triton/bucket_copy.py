"""Copies a model repository from S3 to a folder.

The copy runs in a helper process, because the packages for S3 need memory and time to import. Files whose
etag is unchanged are not fetched again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pipeline.api.buckets import Bucket
from pipeline.errors import ConfigError, get_error_text
from pipeline.process.helper_process import HelperFailed, run_helper

COPY_TIMEOUT_S = 3600.0
MAX_FILES = 100_000
_ETAGS = ".etags.json"  # names with a dot at the start are no models
_PARTIAL = ".partial-"
_NETWORK = {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 3}}


class RemoteFile(NamedTuple):
    """An object of a storage bucket, as listed for the copy."""

    key: str
    etag: str
    size: int


def copy_bucket(bucket: Bucket) -> None:
    """Make the local folder equal to the bucket. Any thread may call it.

    Raises ConfigError if the bucket can't be read or the folder can't be written; the folder then keeps its
    files.
    """
    try:
        result = run_helper(__name__, bucket.endpoint, bucket.path, bucket.folder, timeout_s=COPY_TIMEOUT_S)
        error = json.loads(result.last_line())["error"]
    except HelperFailed as exc:
        error = f"the copy {exc.message}"
    except (OSError, LookupError, ValueError):
        error = "the process that copies it has failed"
    if error:
        raise ConfigError(f"--model-repository={bucket.address} can't be read: {error}")


def main(arguments: Sequence[str]) -> None:
    """Copy a bucket, and print a JSON document with the error text. An empty error text means success."""
    endpoint, path, folder = arguments
    try:
        with _lock_folder(Path(folder)):
            _copy(endpoint, path, Path(folder))
        error = ""
    except ImportError:
        error = "the package s3fs is missing: pip install 'paddlewheel[s3]'"
    except Exception as exc:
        error = f"{type(exc).__name__}: {get_error_text(exc)}"
    sys.stdout.write(f"\n{json.dumps({'error': error})}\n")


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Context manager that creates a folder and locks it against other copies."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"{folder} can't be made ({exc.strerror}): set XDG_CACHE_HOME") from exc
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _copy(endpoint: str, path: str, folder: Path) -> None:
    from fsspec import filesystem

    options = {"endpoint_url": endpoint} if endpoint else {}
    remote = filesystem("s3", config_kwargs=_NETWORK, **options)
    files = list_files(remote, path)
    etags = _read_etags(folder)
    changed = {
        name: file for name, file in files.items() if not _has_copy(folder / name, file, etags.get(name))
    }
    _check_space(folder, changed)
    for leftover in folder.glob(f"{_PARTIAL}*"):
        shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=folder) as partial:
        # All files arrive before the first is replaced: a failure leaves the former repository.
        arrived = {name: Path(partial, str(number)) for number, name in enumerate(changed)}
        for name, file in arrived.items():
            remote.get_file(changed[name].key, str(file))
        for name in etags.keys() - files.keys():
            _remove(folder, name)
        for name, file in arrived.items():
            _make_parent(folder, name)
            file.replace(folder / name)
        written = Path(partial, "etags")
        written.write_text(json.dumps({name: file.etag for name, file in files.items()}), "utf-8")
        written.replace(folder / _ETAGS)


def list_files(remote: Any, path: str) -> dict[str, RemoteFile]:
    """Return the objects under a path of a bucket, by their names relative to the path.

    remote: an fsspec file system. Raises ConfigError for a name that is no path on this machine, and for too
    many objects.
    """
    entries = remote.find(path, detail=True)
    if not entries:
        remote.ls(path.partition("/")[0])  # raises for a missing bucket, which `find` reports as an empty one
    files = {}
    for key, entry in entries.items():
        name = key.removeprefix(path).lstrip("/")
        if not name or key.endswith("/"):  # a folder, as some programs write it
            continue
        if name != str(PurePosixPath(name)) or ".." in name.split("/") or "\0" in name:
            raise ConfigError(f"the object {name!r} has a name that is no path of a file")
        files[name] = RemoteFile(key, str(entry.get("ETag")), int(entry["size"]))
    if len(files) > MAX_FILES:
        raise ConfigError(f"it has {len(files)} objects, and {MAX_FILES} are allowed: name a folder of it")
    return files


def _read_etags(folder: Path) -> dict[str, str]:
    """Return the recorded etag of each copied file, by file name; empty for a new folder."""
    try:
        etags: dict[str, str] = json.loads((folder / _ETAGS).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return etags


def _has_copy(path: Path, file: RemoteFile, etag: str | None) -> bool:
    return etag == file.etag and path.is_file() and path.stat().st_size == file.size


def _check_space(folder: Path, files: Mapping[str, RemoteFile]) -> None:
    needed, free = sum(file.size for file in files.values()), shutil.disk_usage(folder).free
    if needed > free:
        raise ConfigError(
            f"its files need {needed} bytes, and {folder} has {free}: free some, or set XDG_CACHE_HOME"
        )


def _remove(folder: Path, name: str) -> None:
    """Delete a file of the copy, and its parent folders that are then empty."""
    (folder / name).unlink(missing_ok=True)
    for parent in PurePosixPath(name).parents:
        with contextlib.suppress(OSError):
            if parent.name:
                (folder / parent).rmdir()


def _make_parent(folder: Path, name: str) -> None:
    """Create the parent folder of a file to be copied.

    A file in the folder's place, or a folder in the file's place, is removed.
    """
    for parent in reversed(PurePosixPath(name).parents):
        if (folder / parent).is_file():
            (folder / parent).unlink()
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    if (folder / name).is_dir():
        shutil.rmtree(folder / name)


if __name__ == "__main__":
    main(sys.argv[1:])
