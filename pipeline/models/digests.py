"""Digests of a model's files from the time of its parity check, by which changed files are noticed.

serving.yml has two of each file. `sha256` is of all its bytes: a proof, for `convert check`. `sample` is of
its size and 1 MiB spread over it: a few ms for any size, so that every start can look. Other weights, trained
further say, differ nearly everywhere and are noticed; a single changed byte may not be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from pipeline.errors import ConfigError
from pipeline.models.additions import write_additions
from pipeline.models.serving_model import ADDITIONS, ServingModel, load_serving_model

KEY = "digests"
SHA256, SAMPLE = "sha256", "sample"
_BLOCKS, _BLOCK_BYTES = 256, 4096


def hash_files(files: Iterable[Path]) -> dict[str, dict[str, str]]:
    """Return the SHA-256 and the sample digest of each file, by file name, in the form of serving.yml."""
    return {file.name: {SHA256: _sha256(file), SAMPLE: hash_sample(file)} for file in files}


def replaced_files(model: ServingModel, digest: str) -> tuple[str, ...] | None:
    """Return the names of the model's files that changed since its parity check; None without digests.

    `digest` selects the digest to compare: SHA256 of all bytes, or SAMPLE of some. Raises ConfigError for
    malformed digests.
    """
    recorded = model.additions.get(KEY)
    if recorded is None:
        return None
    if not are_digests(recorded):
        raise ConfigError(
            f"{model.directory / ADDITIONS}: {KEY} is not what convert writes: convert the model again"
        )
    return differing(model.directory, recorded, digest)


def differing(folder: Path, recorded: Mapping[str, Mapping[str, str]], digest: str) -> tuple[str, ...]:
    """Return the names of files in a folder that are missing or whose digest differs from the record.

    `recorded` has the form of `hash_files`. `digest` selects SHA256 or SAMPLE.
    """
    digest_file = {SHA256: _sha256, SAMPLE: hash_sample}[digest]
    files = {name: folder / name for name in recorded}
    return tuple(
        name
        for name, file in files.items()
        if not file.is_file() or digest_file(file) != recorded[name][digest]
    )


def are_digests(recorded: object) -> TypeGuard[dict[str, dict[str, str]]]:
    """Whether a value that was read from a file has the form of digests, as returned by `hash_files`."""
    return isinstance(recorded, dict) and all(_is_entry(*item) for item in recorded.items())


def record_digests(directory: Path) -> None:
    """Update the digests in the serving.yml of a model whose files have changed.

    A model without digests is not changed. Raises ConfigError when serving.yml can't be written.
    """
    model = load_serving_model(directory)
    if not replaced_files(model, SHA256):
        return
    recorded = (model.directory / name for name in model.additions[KEY])
    programs = [model.program, *([model.params] if model.params else [])]
    digests = hash_files(dict.fromkeys([*programs, *filter(Path.is_file, recorded)]))
    write_additions(model.directory / ADDITIONS, {**model.additions, KEY: digests})


def _is_entry(name: object, entry: Any) -> bool:
    if not isinstance(name, str) or Path(name).name != name or not isinstance(entry, dict):
        return False
    return all(isinstance(entry.get(digest), str) for digest in (SHA256, SAMPLE))


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def hash_sample(file: Path) -> str:
    """Return a digest of a file's size and of 1 MiB spread over it, which takes a few ms for any size."""
    size = file.stat().st_size
    digest = hashlib.sha256(f"{size}\n".encode())
    with file.open("rb") as opened:
        if size <= _BLOCKS * _BLOCK_BYTES:
            digest.update(opened.read(size))
        else:
            for number in range(_BLOCKS):
                opened.seek((size - _BLOCK_BYTES) * number // (_BLOCKS - 1))
                digest.update(opened.read(_BLOCK_BYTES))
    return digest.hexdigest()
