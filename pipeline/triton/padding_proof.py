"""Whether rows of unequal length may share a run of a model, and what runs cost: tried once, and kept."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.process.cache_folder import cache_folder
from pipeline.process.helper_process import HelperFailed, run_helper
from pipeline.tuning.choice import Point

EQUAL = ": equal shapes only"  # ends the reason of each file whose padding is not proven
TIMEOUT_S = 120.0
_FORM = 4  # of what is kept: counted up when the proof changes


class Proof(NamedTuple):
    """The proof of a model's padding, on axis 1.

    Without feeds only rows of equal shapes share a run.
    """

    feeds: Mapping[str, float]  # the value that each is padded with
    fetches: tuple[str, ...]  # are cut back
    why: str  # for the log: what was proven, or why nothing was
    points: tuple[Point, ...] = ()  # what runs of the model cost, see `Timed`
    max_length: int = 0  # of padded rows
    lasting: bool = True  # False: neighbours used the CPU, and the next start tries again

    @property
    def section(self) -> dict[str, Any] | None:
        """As the Op's section of config.yml says it; None where nothing may be padded."""
        if not self.feeds:
            return None
        return {
            "feeds": {name: {"axis": 1, "value": value} for name, value in self.feeds.items()},
            "fetches": dict.fromkeys(self.fetches, 1),
            "max_length": self.max_length,
        }


def load_padding_proof(program: Path, engine: str) -> Proof:
    """The proof of this file, as it was kept or made anew. Does not raise."""
    kept = _kept_at(program, engine)
    try:
        return _of_text(kept.read_text("utf-8"))
    except (OSError, ValueError, TypeError):
        pass
    try:
        helper = run_helper("pipeline.triton.padding_trial", engine, str(program), timeout_s=TIMEOUT_S)
        if helper.status:
            return _untried(f"the trial left with status {helper.status}")
        told = helper.last_line()  # frameworks print, too
        proof = _of_text(told)
    except HelperFailed as exc:
        return _untried(f"the trial {exc.message}")
    except (OSError, ValueError, TypeError, IndexError) as exc:
        return _untried(f"the trial failed ({type(exc).__name__})")
    if proof.lasting:
        _store_proof(kept, told)
    return proof


def _untried(why: str) -> Proof:
    return Proof({}, (), f"padding is not proven, for {why}{EQUAL}")


def _kept_at(program: Path, engine: str) -> Path:
    """By the digest of the file's head and size: weights of gigabytes are not read for it."""
    with program.open("rb") as file:
        digest = hashlib.sha256(file.read(64 << 20))
    found = program.stat()
    digest.update(f"{_FORM} {engine} {found.st_size} {found.st_mtime_ns}".encode())
    return cache_folder("padding") / f"{digest.hexdigest()}.json"


def _store_proof(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, "utf-8")
        partial.replace(path)
    except OSError:  # it is made again at the next start
        return


def _of_text(text: str) -> Proof:
    feeds, fetches, why, points, max_length, lasting = json.loads(text)
    costs = tuple((int(rows), int(length), float(seconds)) for rows, length, seconds in points)
    return Proof(dict(feeds), tuple(fetches), str(why), costs, int(max_length), bool(lasting))
