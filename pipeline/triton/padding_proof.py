"""Cached proofs, one per model file, that padding rows to equal length does not change a model's outputs.

A trial in a separate process finds the proof, and also measures inference times.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.process.folders import cache_folder
from pipeline.process.helper_process import HelperFailed, run_helper
from pipeline.tuning.choice import Point

EQUAL = ": equal shapes only"  # ends the reason of each file whose padding is not proven
TIMEOUT_S = 120.0
_CACHE_VERSION = 4  # increment when the proof or its format changes


class Proof(NamedTuple):
    """Result of a padding trial: inputs whose second axis may be padded, and inference times.

    Padding lets rows of unequal length share a batch. Without proven inputs, only rows of equal shapes share
    a batch.
    """

    feeds: Mapping[str, float]  # the value that each is padded with
    fetches: tuple[str, ...]  # are cut to the length of the unpadded row
    why: str  # for the log: what was proven, or why nothing was
    points: tuple[Point, ...] = ()  # run times, see `Timed`
    max_length: int = 0  # of padded rows
    lasting: bool = True  # False: other processes used the CPU, so the next start tries again

    @property
    def section(self) -> dict[str, Any] | None:
        """Return the proof as the key `padding` in a section of config.yml; None without proven padding."""
        if not self.feeds:
            return None
        return {
            "feeds": {name: {"axis": 1, "value": value} for name, value in self.feeds.items()},
            "fetches": dict.fromkeys(self.fetches, 1),
            "max_length": self.max_length,
        }


def load_padding_proof(program: Path, engine: str) -> Proof:
    """Return the cached padding proof of a model file. If absent, run the padding trial, for up to 2 minutes.

    engine: runs the model in the trial, e.g. "onnxruntime". Does not raise: a failed trial gives a proof
    without feeds.
    """
    cache_file = _find_cache_file(program, engine)
    try:
        return _parse_proof(cache_file.read_text("utf-8"))
    except (OSError, ValueError, TypeError):
        pass
    try:
        helper = run_helper("pipeline.triton.padding_trial", engine, str(program), timeout_s=TIMEOUT_S)
        if helper.status:
            return _no_proof(f"the trial left with status {helper.status}")
        text = helper.last_line()  # frameworks print, too
        proof = _parse_proof(text)
    except HelperFailed as exc:
        return _no_proof(f"the trial {exc.message}")
    except (OSError, ValueError, TypeError, IndexError) as exc:
        return _no_proof(f"the trial failed ({type(exc).__name__})")
    if proof.lasting:
        _store_proof(cache_file, text)
    return proof


def _no_proof(why: str) -> Proof:
    return Proof({}, (), f"padding is not proven, for {why}{EQUAL}")


def _find_cache_file(program: Path, engine: str) -> Path:
    """Return the path of a model file's cached padding proof.

    The file name is a digest of the model file's first bytes, size and mtime: hashing gigabytes of weights
    would delay the start.
    """
    with program.open("rb") as file:
        digest = hashlib.sha256(file.read(64 << 20))
    state = program.stat()
    digest.update(f"{_CACHE_VERSION} {engine} {state.st_size} {state.st_mtime_ns}".encode())
    return cache_folder("padding") / f"{digest.hexdigest()}.json"


def _store_proof(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, "utf-8")
        partial.replace(path)
    except OSError:  # the next start proves it again
        return


def _parse_proof(text: str) -> Proof:
    feeds, fetches, why, points, max_length, lasting = json.loads(text)
    costs = tuple((int(rows), int(length), float(seconds)) for rows, length, seconds in points)
    return Proof(dict(feeds), tuple(fetches), str(why), costs, int(max_length), bool(lasting))
