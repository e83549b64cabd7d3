"""Trial of a model file on random rows: proves that padding leaves its outputs alone, and times inference.

The trial runs the model, so it needs a process of its own, which prints a `Proof` as JSON:
`python -m pipeline.triton.padding_trial ENGINE PROGRAM`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pipeline.config.config_file import LocalServiceConf
from pipeline.engines.base import load_engine
from pipeline.engines.feeds import IMAGE_RANK
from pipeline.models.serving_model import load_serving_model
from pipeline.padding.proof import MAX_LENGTH, Budget, PaddedModel, prove_padding
from pipeline.triton.model_folder import find_id_limits, find_unknown_operators, read_program_facts
from pipeline.triton.padding_proof import EQUAL, Proof
from pipeline.tuning.timed_runs import Grid, time_runs

GRID = Grid((1, 2, 4, 8), (16, 64, 256))  # rows and lengths of the timed runs
TIMING_S = 2.0  # CPU time
_CHECKS_IDS = "onnxruntime"  # the engine that rejects ids and positions beyond its embedding tables
_UNCHECKED_LENGTH = 512  # other engines may read positions beyond the table from arbitrary memory


def prove(program: Path, engine: str) -> Proof:
    """Test whether padding changes a model's outputs, on random rows.

    Returns the inputs that may be padded and inference times, or the reason why padding is not proven.
    engine: name of the engine, such as "onnxruntime".
    """
    facts = read_program_facts(program, engine)
    if any(variable.shape[:2] != (-1, -1) for variable in facts.feeds):
        return Proof({}, (), f"not every input has an open second axis{EQUAL}")
    if any(len(variable.shape) >= IMAGE_RANK for variable in facts.feeds):
        return Proof({}, (), f"an input has the axes of images{EQUAL}")
    if domains := find_unknown_operators(program):
        return Proof({}, (), f"padding is not proven, for operators of {domains} are unknown{EQUAL}")
    limits = find_id_limits(program, engine)
    conf = LocalServiceConf.model_validate(
        {"model_config": str(facts.folder), "engine": engine, "thread_num": 1}
    )
    predictor = load_engine(engine).load(load_serving_model(facts.folder, engine), conf)
    checks = engine == _CHECKS_IDS
    model = PaddedModel(
        lambda feeds: predictor.run(feeds),
        facts.feeds,
        limits,
        checks,
        max_length=MAX_LENGTH if checks else _UNCHECKED_LENGTH,
    )
    budget = Budget()
    proof = prove_padding(model, budget)
    if not proof.feeds:
        return Proof({}, (), f"{proof.reason}{EQUAL}", lasting=not budget.waited)
    points = time_runs(predictor, GRID, TIMING_S, time.process_time)
    values = {name: float(rule.value) for name, rule in proof.feeds.items()}
    lasting = not budget.waited
    return Proof(values, tuple(proof.fetches), proof.reason, points, proof.max_length, lasting)


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(prove(Path(sys.argv[2]), sys.argv[1]))}\n")
