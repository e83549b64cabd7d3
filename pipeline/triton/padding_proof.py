"""Whether rows of unequal length may share a run of an ONNX model: padded, each answers as it does alone.

It runs the model, and so in a process of its own: `python -m pipeline.triton.padding_proof PROGRAM`.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.models.onnx_file import OnnxFacts, inspect_onnx
from pipeline.models.signature import Variable
from pipeline.process.processes import python_module

LENGTHS = (5, 9, 14)  # of the rows that are tried, each alone and padded
PADDED = (14, 21)
TOLERANCE = 1e-4
TIMEOUT_S = 120.0
_KNOWN_IDS = 1000  # where the file does not tell how many there are
_FORM = 1  # of what is kept: counted up when the proof changes


class Proof(NamedTuple):
    """feeds: the value that each is padded with, on axis 1. fetches: those that are cut back there. why: what
    was tried, or why rows of one length alone share a run."""

    feeds: Mapping[str, float]
    fetches: tuple[str, ...]
    why: str

    @property
    def section(self) -> dict[str, Any] | None:
        """As the Op's section of config.yml says it; None where nothing may be padded."""
        if not self.feeds:
            return None
        return {
            "feeds": {name: {"axis": 1, "value": value} for name, value in self.feeds.items()},
            "fetches": dict.fromkeys(self.fetches, 1),
        }


def padding_of(program: Path) -> Proof:
    """The proof of this file, as it was kept or made anew. Does not raise."""
    kept = _kept_at(program)
    try:
        return _of_text(kept.read_text("utf-8"))
    except (OSError, ValueError, TypeError):
        pass
    command = [*python_module("pipeline.triton.padding_proof"), str(program)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        proof = _of_text(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError, TypeError) as exc:
        return Proof({}, (), f"the padding could not be tried: {type(exc).__name__}")
    _keep(kept, done.stdout)
    return proof


def _kept_at(program: Path) -> Path:
    """By the digest of the file's head and size: weights of gigabytes are not read for it."""
    with program.open("rb") as file:
        digest = hashlib.sha256(file.read(64 << 20))
    found = program.stat()
    digest.update(f"{_FORM} {found.st_size} {found.st_mtime_ns}".encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "paddlewheel" / "padding" / f"{digest.hexdigest()}.json"


def _keep(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, "utf-8")
        partial.replace(path)
    except OSError:  # it is made again at the next start
        return


def _of_text(text: str) -> Proof:
    feeds, fetches, why = json.loads(text)
    return Proof(dict(feeds), tuple(fetches), str(why))


def prove(program: Path) -> Proof:
    """Try the ways in which the inputs may be padded, the likely ones first."""
    facts = inspect_onnx(program)
    if any(variable.shape[:2] != (-1, -1) for variable in facts.feeds):
        return Proof({}, (), "not every input has an open second axis")
    if any(np.dtype(variable.numpy_dtype).kind not in "iuf" for variable in facts.feeds):
        return Proof({}, (), "an input holds no numbers")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(program), options, providers=["CPUExecutionProvider"])
    trial = _Trial(session, facts)
    tried = 0
    for mask, pad in _ways(facts):
        tried += 1
        fetches = trial.holds(mask, pad)
        if fetches is not None:
            feeds = {v.alias: float(_pad_of(v, mask, pad)) for v in facts.feeds}
            told = f"with {mask!r} as mask" if mask else "without a mask"
            return Proof(feeds, fetches, f"padded rows answer as alone, {told}, ids padded with {pad}")
    return Proof({}, (), f"padded rows answer otherwise than alone ({tried} ways tried): equal lengths only")


def _ways(facts: OnnxFacts) -> Iterator[tuple[str, int]]:
    """Which input may be the mask, empty for none, and what ids are padded with."""
    whole = [v.alias for v in facts.feeds if v.alias not in facts.id_limits]
    named = [name for name in whole if "mask" in name.lower()]
    masks = [*named, *(name for name in whole if name not in named)]
    for mask in (*masks, ""):
        for pad in (0, 1):
            yield mask, pad


def _pad_of(variable: Variable, mask: str, pad: int) -> int:
    return 0 if variable.alias == mask or _is_type(variable) else pad


def _is_type(variable: Variable) -> bool:
    name = variable.alias.lower()
    return "type" in name or "segment" in name or np.dtype(variable.numpy_dtype).kind == "f"


class _Trial:
    """Random rows, each run alone and padded."""

    def __init__(self, session: Any, facts: OnnxFacts) -> None:
        self._session = session
        self._facts = facts
        self._random = np.random.default_rng(20)

    def holds(self, mask: str, pad: int) -> tuple[str, ...] | None:
        """The outputs that have the length on axis 1, where every padded row answers as alone; else None."""
        lengthy: set[str] = set()
        try:
            for length in LENGTHS:
                feed = {v.alias: self._row(v, length, mask) for v in self._facts.feeds}
                alone = self._run(feed)
                lengthy |= {name for name, out in alone.items() if out.ndim > 1 and out.shape[1] == length}
                for padded in PADDED:
                    if padded > length and not self._agrees(feed, alone, length, padded, mask, pad):
                        return None
        except Exception:  # of the engine, for ids or lengths that the model does not take
            return None
        return tuple(sorted(lengthy))

    def _agrees(
        self, feed: Mapping[str, Any], alone: Mapping[str, Any], length: int, padded: int, mask: str, pad: int
    ) -> bool:
        filled = {
            v.alias: np.pad(
                feed[v.alias],
                [(0, 0), (0, padded - length), *[(0, 0)] * (feed[v.alias].ndim - 2)],
                constant_values=_pad_of(v, mask, pad),
            )
            for v in self._facts.feeds
        }
        for name, out in self._run(filled).items():
            own = out[:, :length] if out.ndim > 1 and out.shape[1] == padded else out
            if own.shape != alone[name].shape or not np.allclose(own, alone[name], TOLERANCE, TOLERANCE):
                return False
        return True

    def _row(self, variable: Variable, length: int, mask: str) -> Any:
        shape = (1, length, *(4 if axis == -1 else axis for axis in variable.shape[2:]))
        dtype = np.dtype(variable.numpy_dtype)
        if variable.alias == mask:
            return np.ones(shape, dtype)
        if dtype.kind == "f":
            return self._random.standard_normal(shape).astype(dtype)
        most = self._facts.id_limits.get(variable.alias, 2 if _is_type(variable) else _KNOWN_IDS)
        least = 0 if most < 4 else 2  # not those that pad
        return self._random.integers(least, most, shape).astype(dtype)

    def _run(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        names = [variable.name for variable in self._facts.fetches]
        return dict(zip(names, self._session.run(names, dict(feed)), strict=True))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(prove(Path(sys.argv[1]))))
