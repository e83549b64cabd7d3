"""Finds the scikit-learn version in a pickled model, and compares it with the conversion environment's.

The pickle is searched as bytes and never loaded.
"""

from __future__ import annotations

import bz2
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from convert.result import ConversionOptions
from convert.steps.conversion_environment import CONVERT_PYTHON, conversion_python
from convert.steps.isolation import run_isolated
from pipeline.errors import ConversionError
from pipeline.launch.commands import paddlewheel

_PIECE_BYTES, _OVERLAP_BYTES, _MAX_BYTES = 1 << 20, 64, 1 << 32
# pickletools.genops stops at the arrays of joblib, whose bytes stand between the opcodes.
# The opcodes here are UNICODE, BINUNICODE and SHORT_BINUNICODE; PUT, BINPUT, LONG_BINPUT or MEMOIZE follow.
_VERSION = re.compile(
    rb"_sklearn_version(?:\x94|q.|r.{4}|\np\d+\n)?(?:\x8c(?P<short>.)|X(?P<long>.{4})|V)", re.DOTALL
)
_NUMBER = re.compile(r"\d[0-9A-Za-z.+]*")
_BOOSTER = re.compile(rb"(lightgbm|xgboost)[.\n]")
_DECOMPRESSORS: Mapping[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"\x78": zlib.decompressobj,
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ": lzma.LZMADecompressor,
    b"]\x00": lzma.LZMADecompressor,
}


class PickleFacts(NamedTuple):
    """The scikit-learn version and the boosting libraries that a pickle names."""

    sklearn: str = ""  # version of scikit-learn; empty if the pickle has none
    boosters: tuple[str, ...] = ()  # import names: lightgbm, xgboost

    @property
    def packages(self) -> tuple[str, ...]:
        """Import names of the packages that a conversion needs besides those for scikit-learn."""
        return (*self.boosters, "onnxmltools") if self.boosters else ()


def read_pickle_facts(path: Path) -> PickleFacts:
    """Find version and libraries in the bytes of a pickle, which joblib may have compressed.

    The pickle is not loaded. The result is empty for a file that can't be decompressed.
    """
    boosters: set[str] = set()
    version, before = "", b""
    try:
        for piece in _pieces(path):
            text = before + piece
            boosters.update(library.decode() for library in _BOOSTER.findall(text))
            version = version or _find_version(text)
            before = text[-_OVERLAP_BYTES:]
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError):
        return PickleFacts()
    return PickleFacts(version, tuple(sorted(boosters)))


def _find_version(text: bytes) -> str:
    match = _VERSION.search(text)
    if match is None:
        return ""
    length = match["short"] or match["long"]
    end = match.end() + int.from_bytes(length, "little") if length else text.find(b"\n", match.end())
    if not match.end() < end <= min(len(text), match.end() + _OVERLAP_BYTES):
        return ""
    number = text[match.end() : end].decode("ascii", "replace")
    return number if _NUMBER.fullmatch(number) else ""


def _pieces(path: Path) -> Iterator[bytes]:
    """Yield the file's decompressed bytes in pieces, at most about 4 GiB."""
    with path.open("rb") as file:
        head = file.read(_PIECE_BYTES)
        create = next((create for magic, create in _DECOMPRESSORS.items() if head.startswith(magic)), None)
        decompressor, count = create() if create else None, 0
        while head and count < _MAX_BYTES:
            piece = decompressor.decompress(head) if decompressor else head
            yield piece
            count += len(piece)
            head = b"" if decompressor and decompressor.eof else file.read(_PIECE_BYTES)


SCIKIT_LEARN = "scikit-learn"
SCIKIT_LEARN_NEEDS = ("sklearn", "skl2onnx", "joblib", "onnx")


def describe_mismatch(
    source: Path, facts: PickleFacts, needs: Sequence[str], options: ConversionOptions
) -> str:
    """Return a sentence about different scikit-learn versions in pickle and environment; empty if they match.

    The sentence names both versions and the commands that convert with the right one. Patch releases of
    scikit-learn can read each other's pickles.
    """
    if not facts.sklearn:
        return ""
    installed = run_isolated(
        "convert.from_tables.table_model:installed_version",
        {"distribution": SCIKIT_LEARN},
        converter=SCIKIT_LEARN,
        needs=needs,
        timeout_s=options.step_timeout_s,
    )
    if _minor(installed) == _minor(facts.sklearn):
        return ""
    return (
        f"{source} was saved by scikit-learn {facts.sklearn}, and {conversion_python(needs)} has "
        f"{installed}, which may misread it. {_matching_commands(facts, options)}"
    )


def require_environment(
    source: Path, facts: PickleFacts, needs: Sequence[str], options: ConversionOptions
) -> None:
    """Raise ConversionError if no Python environment has the packages that read the pickle and convert it.

    The error names the commands that create an environment with the pickle's version of scikit-learn, because
    another version may misread the pickle.
    """
    try:
        conversion_python(needs)
    except ConversionError as exc:
        if not facts.sklearn or CONVERT_PYTHON in os.environ:
            raise
        raise ConversionError(
            f"{source} was saved by scikit-learn {facts.sklearn}, and there is no conversion environment. "
            f"{_matching_commands(facts, options)}"
        ) from exc


def _matching_commands(facts: PickleFacts, options: ConversionOptions) -> str:
    folder = f"{SCIKIT_LEARN}-{facts.sklearn}"
    packages = " ".join((f"{SCIKIT_LEARN}=={facts.sklearn}", *facts.boosters))
    again = options.command or "the conversion"
    return (
        f"Convert it with {facts.sklearn}: `{paddlewheel()} convert-env {folder} --tables {packages} && "
        f"{CONVERT_PYTHON}={folder}/bin/python {again}`"
    )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
