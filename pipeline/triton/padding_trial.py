"""Tries whether padded rows of an ONNX model answer as they do alone.

It runs the model, and so in a process of its own: `python -m pipeline.triton.padding_trial PROGRAM`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.models.onnx_file import OnnxFacts, inspect_onnx
from pipeline.models.signature import Variable
from pipeline.triton.padding_proof import Proof

LENGTHS = (5, 9, 14)  # of the rows that are tried, each alone and padded
PADDED = (14, 21)
TOLERANCE = 1e-4
_KNOWN_IDS = 1000  # where the file does not tell how many there are


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
