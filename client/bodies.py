"""The request bodies of a load test, made of texts or read from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from client.endpoints import Endpoint, RequestNames

LINES = (".jsonl", ".ndjson")  # a body a line; any other file is a body as it is


def make_text_bodies(
    endpoint: Endpoint, request_names: RequestNames, texts: Sequence[str], keys: Sequence[str], rows: int
) -> list[bytes]:
    """Make a body for each text; further rows of a request are the texts that follow.

    keys: names of the texts of a request, one for all or one for each. Raises ValueError for another number.
    """
    names = list(keys) or list(endpoint.keys(rows))
    if len(names) not in (1, rows):
        raise ValueError(f"--as is given {len(names)} times for {rows} texts a request; name all, or one")
    if len(names) == 1 and rows > 1 and len(endpoint.keys(rows)) > 1:
        raise ValueError(f"a key has one text at this endpoint; give --as {rows} times")
    bodies = []
    for start in range(len(texts)):
        row_texts = [texts[(start + row) % len(texts)] for row in range(rows)]
        columns = (
            {names[0]: row_texts}
            if len(names) == 1
            else {n: [t] for n, t in zip(names, row_texts, strict=True)}
        )
        bodies.append(endpoint.body(request_names, columns))
    return bodies


def read_bodies(endpoint: Endpoint, path: Path) -> list[bytes]:
    """Read the bodies: each line of a JSON lines file, any other file, or each file of a folder.

    Raises OSError, and ValueError without a body or for a line that is no body of this protocol.
    """
    if path.is_dir():
        bodies = [file.read_bytes() for file in sorted(path.iterdir()) if file.is_file()]
    elif path.suffix in LINES:
        bodies = []
        for number, line in enumerate(read_texts(path), 1):
            try:
                bodies.append(endpoint.from_json(line))
            except ValueError as exc:
                raise ValueError(f"{path}: body {number} is none of this endpoint's: {exc}") from exc
    else:
        bodies = [path.read_bytes()]
    if not any(bodies):
        raise ValueError(f"{path} holds no body")
    return bodies


def read_texts(path: Path) -> list[str]:
    """Read the non-empty lines of a UTF-8 file; only a line feed ends a line: texts may hold U+2028."""
    lines = path.read_bytes().decode("utf-8").split("\n")
    return [line.strip() for line in lines if line.strip()]
