"""Where a server of the protocol is easily another than Triton: what is refused, and how that is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import PATIENCE_S, read_answer

_ROW = {"name": "x", "shape": [1, 4], "datatype": "FP32"}
_DATA = {**_ROW, "data": [1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("model", "body", "status", "kind", "told"),
    [
        ("nope", {"inputs": [_DATA]}, 404, "text/plain", "'nope' is not found"),
        ("scaled", {}, 500, "application/json", "object member 'inputs'"),
        ("scaled", {"inputs": [_ROW]}, 400, "application/json", "in 'parameters'. But no field is set"),
        ("scaled", {"inputs": [7]}, 400, "application/json", "one is 7, and no object"),
        ("scaled", {"inputs": [{**_DATA, "shape": [2, 4]}]}, 500, "application/json", "Shape does not match"),
        (
            "scaled",
            {"inputs": [_DATA], "parameters": {"sequence_id": 3}},
            400,
            "application/json",
            "keeps no sequences",
        ),
        (
            "words",
            {"inputs": [{"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["raise"]}]},
            500,
            "text/plain",
            "ValueError: no such word",
        ),
    ],
)
def test_a_refusal_has_the_status_the_type_and_the_words_of_triton(
    service: RepositoryProcess, model: str, body: dict[str, Any], status: int, kind: str, told: str
) -> None:
    answer = service.http(f"/v2/models/{model}/infer", json.dumps(body))
    assert (answer.status, answer.headers["content-type"], told in answer.json["error"]) == (
        status, kind, True
    ), answer  # fmt: skip


def test_zero_rows_are_the_fault_of_the_client(service: RepositoryProcess) -> None:
    empty = {**_ROW, "shape": [0, 4], "data": []}
    answer = service.http("/v2/models/scaled/infer", json.dumps({"inputs": [empty]}))
    assert (answer.status, "batch-size must be >= 1" in answer.json["error"]) == (400, True), answer


@pytest.mark.parametrize("path", ["/v2/health/ready", "/v2/models/scaled", "/v2/models/scaled/ready"])
def test_head_is_not_answered(service: RepositoryProcess, path: str) -> None:
    connection = service.connection(PATIENCE_S)
    connection.request("HEAD", path)
    assert read_answer(connection).status == 405
    connection.close()


def test_generate_answers_in_chunks(service: RepositoryProcess) -> None:
    answer = service.http("/v2/models/same/generate", json.dumps({"I": "a"}))
    assert (answer.headers["transfer-encoding"], answer.json["O"]) == ("chunked", "a")


def test_the_server_tells_that_models_are_unloaded_with_those_of_their_steps(
    service: RepositoryProcess,
) -> None:
    assert "model_repository(unload_dependents)" in service.http("/v2").json["extensions"]


def test_failures_of_an_ensemble_are_counted_by_the_step(service: RepositoryProcess) -> None:
    name, labels = "paddlewheel_ensemble_step_failures_total", {"model": "whole", "step_model": "words"}
    before = service.metric(name, **labels)
    given = {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["raise"]}
    answer = service.http("/v2/models/whole/infer", json.dumps({"inputs": [given]}))
    assert "in ensemble 'whole', step 2 ('words' version 1)" in answer.json["error"]
    assert service.metric(name, **labels) == before + 1
