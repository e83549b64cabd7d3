"""Sequences of the models of a script: `state` and `constants` in serving.yml."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.models.serving_model import load_serving_model
from tests.support.sequence_models import first, protocols, write_layered
from tests.support.service_process import APPS, ServiceProcess

ADDITIONS = "state: {state: {output: stateN, axis: 1}}\nconstants: {sr: 2}\n"
CLIENTS, REQUESTS = 16, 12


def test_rows_of_many_sequences_share_batches_along_the_second_axis_of_the_state(tmp_path: Path) -> None:
    conf = {"model_config": str(write_layered(tmp_path / "model", ADDITIONS))}
    section = {"concurrency": 1, "batch_size": 8, "auto_batching_timeout": 200, "local_service_conf": conf}
    config = {"op": {"model": section}}
    with ServiceProcess(APPS / "model.py", config) as service, protocols(service) as (over_http, infer):
        assert first(over_http("model", 1, sequence_id="one", sequence_start=True)) == 12
        assert first(infer("model", 1, sequence_id="one")) == 24

        def run(key: int) -> list[float]:
            flags = [{"sequence_start": number == 0} for number in range(REQUESTS)]
            return [first(infer("model", key, sequence_id=key, **each)) for each in flags]

        with ThreadPoolExecutor(CLIENTS) as clients:
            answers = list(clients.map(run, range(1, CLIENTS + 1)))
        assert answers == [
            [12 * key * number for number in range(1, REQUESTS + 1)] for key in range(1, CLIENTS + 1)
        ]
        runs = service.metric("paddlewheel_predictor_batch_rows_count", op="model")
        assert runs <= (CLIENTS * REQUESTS + 2) / 2


@pytest.mark.parametrize(
    ("additions", "message"),
    [
        ("state: [state]", r"state is no mapping; write \{h: \{output: hn, axis: 1\}\}"),
        ("state: {state: stateN}", r"state.state is not of the form \{output: hn, axis: 1"),
        ("state: {h: {output: stateN}}", "state.h: the model has no input 'h', only INPUT, state, sr"),
        ("state: {state: {output: hn}}", "the model has no output 'hn', only OUTPUT, stateN"),
        ("state: {state: {output: stateN}}", r"axis 0 is not the batch axis: .* of the shape \[2, -1, 3\]"),
        ("state: {state: {output: stateN, axis: 1, shape: [2, 1, 4]}}", r"shape \[2, 1, 4\] is not like"),
        ("constants: 3", r"constants is no mapping; write \{sr: 16000\}"),
        ("constants: {rate: 3}", "constants.rate: the model has only INPUT, state, sr"),
        ("constants: {sr: [3]}", "constants.sr has 1 axes"),
        ("constants: {sr: three}", "constants.sr: 'three' is no value of int64"),
    ],
)
def test_a_description_that_does_not_fit_the_model_is_refused(
    tmp_path: Path, additions: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_serving_model(write_layered(tmp_path / "model", additions))
