"""Tries whether padded rows of a model answer as they do alone, and times its runs.

It runs the model, and so in a process of its own: `python -m pipeline.triton.padding_trial ENGINE PROGRAM`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.config_file import LocalServiceConf
from pipeline.engines.base import Predictor, engine_named
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import load_serving_model
from pipeline.models.signature import Variable
from pipeline.triton.padding_proof import Proof
from pipeline.triton.program_facts import facts_of
from pipeline.tuning.timed_runs import Grid, time_runs

LENGTHS = (5, 9, 14)  # of the rows that are tried, each alone and padded
PADDED = (14, 21)
TOLERANCE = 1e-4
GRID = Grid((1, 2, 4, 8), (16, 64, 256))  # of the runs that are timed
BUDGET_S = 2.0  # of CPU
_KNOWN_IDS = 50  # where the file does not tell how many there are


def prove(program: Path, engine: str) -> Proof:
    """Try the ways in which the inputs may be padded, the likely ones first."""
    facts = facts_of(program, engine)
    if any(variable.shape[:2] != (-1, -1) for variable in facts.feeds):
        return Proof({}, (), "not every input has an open second axis")
    if any(np.dtype(variable.numpy_dtype).kind not in "iuf" for variable in facts.feeds):
        return Proof({}, (), "an input holds no numbers")
    id_limits = inspect_onnx(program).id_limits if program.suffix == ".onnx" else {}
    conf = LocalServiceConf.model_validate(
        {"model_config": str(facts.folder), "engine": engine, "thread_num": 1}
    )
    predictor = engine_named(engine).load(load_serving_model(facts.folder, engine), conf)
    points = time_runs(predictor, GRID, BUDGET_S, time.process_time)
    trial = _Trial(predictor, facts.feeds, id_limits)
    tried = 0
    for mask, pad in _ways(facts.feeds, id_limits):
        tried += 1
        fetches = trial.holds(mask, pad)
        if fetches is not None:
            feeds = {v.alias: float(_pad_of(v, mask, pad)) for v in facts.feeds}
            told = f"with {mask!r} as mask" if mask else "without a mask"
            why = f"padded rows answer as alone, {told}, ids padded with {pad}"
            return Proof(feeds, fetches, why, points)
    why = f"padded rows answer otherwise than alone ({tried} ways tried): equal lengths only"
    return Proof({}, (), why, points)


def _ways(feeds: Sequence[Variable], id_limits: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Which input may be the mask, empty for none, and what ids are padded with."""
    whole = [v.alias for v in feeds if v.alias not in id_limits]
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

    def __init__(self, predictor: Predictor, feeds: Sequence[Variable], id_limits: Mapping[str, int]) -> None:
        self._predictor = predictor
        self._feeds = feeds
        self._id_limits = id_limits
        self._random = np.random.default_rng(20)

    def holds(self, mask: str, pad: int) -> tuple[str, ...] | None:
        """The outputs that have the length on axis 1, where every padded row answers as alone; else None."""
        lengthy: set[str] = set()
        try:
            for length in LENGTHS:
                feed = {v.alias: self._row(v, length, mask) for v in self._feeds}
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
            for v in self._feeds
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
        most = self._id_limits.get(variable.alias, 2 if _is_type(variable) else _KNOWN_IDS)
        least = 0 if most < 4 else 2  # not those that pad
        return self._random.integers(least, most, shape).astype(dtype)

    def _run(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        return self._predictor.run(dict(feed))


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(prove(Path(sys.argv[2]), sys.argv[1]))}\n")
