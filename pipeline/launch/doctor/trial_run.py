"""What both trials do in their child processes: run a model, compare its answer, tell it in JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from pipeline.config.op_section import LocalServiceConf
from pipeline.engines import create_predictor
from pipeline.errors import ServingError
from pipeline.models.serving_model import ServingModel

TOLERANCE = 1e-4


def tell_prediction(
    device: str,
    model: ServingModel,
    rows: np.ndarray[Any, Any],
    expected: np.ndarray[Any, Any],
    *,
    through: str,
    by: str,
) -> None:
    """Run `rows` as the feed x on the device, and tell the time, or what is wrong with the fetch y.

    For the sentence: what the rows go through, and by whom the expected answer is.
    """
    conf = LocalServiceConf.model_validate({"device_type": int(device == "GPU"), "thread_num": 1})
    try:
        spent_ms = _run(model, conf, rows, expected, by)
    except (ServingError, RuntimeError, ValueError) as exc:
        tell(device=device, error=str(exc)[:400])
    else:
        told = f"{len(rows)} rows through {through} in {spent_ms:.1f} ms, equal to {by} own answer"
        tell(device=device, prediction=told)


def _run(
    model: ServingModel,
    conf: LocalServiceConf,
    rows: np.ndarray[Any, Any],
    expected: np.ndarray[Any, Any],
    by: str,
) -> float:
    predictor = create_predictor(model, conf)
    predictor.run({"x": rows})  # the first run also sets up
    begin = time.perf_counter()
    answer = predictor.run({"x": rows})["y"]
    spent_ms = (time.perf_counter() - begin) * 1000
    predictor.close()
    difference = float(np.abs(answer - expected).max())
    if not difference <= TOLERANCE:  # NaN, too
        raise ValueError(f"the prediction differs from {by} own answer by {difference:g}")
    return spent_ms


def tell(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
