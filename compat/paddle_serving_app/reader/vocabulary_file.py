"""The files of words that a reader is given: the original downloaded them, here they must be there."""

from __future__ import annotations

from pathlib import Path

from pipeline.text_lines import read_lines


def words_file(path: str | Path, reader: str, address: str) -> list[str]:
    """Lines of text. Raises FileNotFoundError that says where the file comes from."""
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(
            f"{reader} needs {file}, which is not there; nothing is downloaded here: take it from {address}"
        )
    return read_lines(file)
