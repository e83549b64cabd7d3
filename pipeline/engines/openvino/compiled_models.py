"""The cache of compiled models: OpenVINO's own files, so that a large model is loaded in half the time.

    $XDG_CACHE_HOME/paddlewheel/openvino/KEY/    one for each state of a model's files and way to run it

It is never beside the model, which may be read-only, and holds MAX_BYTES at most: the folders that were used
longest ago are removed. What can't be cached is compiled all the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.engines.openvino.openvino_import import openvino
from pipeline.process.cache_folder import cache_folder

log = logging.getLogger(__name__)

# A BERT of 409 MB: 1.0 s of CPU to load, 0.4 s from here; one of 5 MB: 0.12 s and 0.05 s.
LEAST_BYTES = 64 << 20
MAX_BYTES = 8 << 30
_COMPLETE, _LOCK = "complete", "lock"
_OF_THE_CPU = ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES")


def compile_onnx(core: openvino.Core, files: Sequence[Path], device: str, properties: dict[str, Any]) -> Any:
    """The compiled model of the first of `files`, which are the graph and those with its weights."""
    program = str(files[0])
    try:
        size = sum(file.stat().st_size for file in files)
        if not LEAST_BYTES <= size <= MAX_BYTES // 2:
            return core.compile_model(program, device, properties)
        key = _key(files, [str(core.get_property(device, name)) for name in _OF_THE_CPU], properties)
        with _held(cache_folder("openvino") / key, size) as folder:
            compiled = core.compile_model(program, device, {**properties, "CACHE_DIR": str(folder)})
            (folder / _COMPLETE).touch()
            return compiled
    except (OSError, RuntimeError) as exc:
        # Also for a model that can't be compiled at all: that is told then.
        log.info("%s is compiled without the cache (%s)", program, exc)
        return core.compile_model(program, device, properties)


@contextmanager
def _held(folder: Path, size: int) -> Iterator[Path]:
    """The folder, which no other process writes meanwhile; empty where none has completed it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not (folder / _COMPLETE).exists():
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / _COMPLETE).exists():
                _clear(folder)
                _make_room(folder, size)
        os.utime(folder)
        yield folder


def _clear(folder: Path) -> None:
    """Remove what a process has left that died while it wrote."""
    for file in folder.iterdir():
        if file.name != _LOCK:
            file.unlink()


def _make_room(folder: Path, size: int) -> None:
    """Remove the folders used longest ago, until `size` more bytes fit; a loaded model keeps its file."""
    others = sorted((other for other in folder.parent.iterdir() if other != folder), key=_last_use)
    taken = {other: sum(file.stat().st_size for file in other.iterdir()) for other in others}
    for other in others:
        if sum(taken.values()) + size <= MAX_BYTES:
            return
        shutil.rmtree(other, ignore_errors=True)
        del taken[other]


def _last_use(folder: Path) -> float:
    return folder.stat().st_mtime


def _key(files: Sequence[Path], cpu: Sequence[str], properties: dict[str, Any]) -> str:
    """Of the files as they are, and of all that they are compiled by and for.

    2026.4 itself takes a file that was compiled for f32 for bf16, too, and then answers with nan or crashes.
    """
    states: list[object] = [openvino.__version__, cpu, sorted(properties.items())]
    for file in files:
        of = file.stat()
        states.append((str(file.resolve()), of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns))
    return hashlib.sha256(repr(states).encode()).hexdigest()[:32]
