"""What a load test sends: the bodies of requests, made of texts or read from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from client.doors import Called, Door

LINES = (".jsonl", ".ndjson")  # a body a line; any other file is a body as it is


def bodies_of_texts(
    door: Door, called: Called, texts: Sequence[str], keys: Sequence[str], rows: int
) -> list[bytes]:
    """A body for each text, with those that follow it where a request has several rows.

    keys: what the texts of a request are called. Raises ValueError where they are neither one for all nor one
    for each.
    """
    names = list(keys) or list(door.keys(rows))
    if len(names) not in (1, rows):
        raise ValueError(f"--as is given {len(names)} times for {rows} texts a request; name all, or one")
    if len(names) == 1 and rows > 1 and len(door.keys(rows)) > 1:
        raise ValueError(f"a key has one text at this door; give --as {rows} times")
    bodies = []
    for start in range(len(texts)):
        taken = [texts[(start + row) % len(texts)] for row in range(rows)]
        columns = (
            {names[0]: taken} if len(names) == 1 else {n: [t] for n, t in zip(names, taken, strict=True)}
        )
        bodies.append(door.body(called, columns))
    return bodies


def read_bodies(door: Door, path: Path) -> list[bytes]:
    """The bodies in a file of JSON lines; of any other file itself, of a folder each of its files.

    Raises ValueError where there is none, or a line is no body of this door, and OSError.
    """
    if path.is_dir():
        bodies = [file.read_bytes() for file in sorted(path.iterdir()) if file.is_file()]
    elif path.suffix in LINES:
        bodies = []
        for number, line in enumerate(read_texts(path), 1):
            try:
                bodies.append(door.from_json(line))
            except ValueError as exc:
                raise ValueError(f"{path}: body {number} is none of this door's: {exc}") from exc
    else:
        bodies = [path.read_bytes()]
    if not any(bodies):
        raise ValueError(f"{path} holds no body")
    return bodies


def read_texts(path: Path) -> list[str]:
    """The lines of a UTF-8 file, empty ones left out; only a line feed ends one, as texts may hold U+2028."""
    lines = path.read_bytes().decode("utf-8").split("\n")
    return [line.strip() for line in lines if line.strip()]
