"""Reads the vocabulary files of readers, which must exist: unlike the original, nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

from pipeline.text_lines import read_lines


def words_file(path: str | Path, reader: str, address: str) -> list[str]:
    """Read the lines of a vocabulary file. Raise FileNotFoundError that says where to get the file.

    reader, address: the class, and the URL of the file, for the error message.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(
            f"{reader} needs {file}, which is not there; nothing is downloaded here: take it from {address}"
        )
    return read_lines(file)
