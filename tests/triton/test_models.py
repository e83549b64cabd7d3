"""Models of a repository: what is served, how each answers, and what becomes of those that can't be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as rpc
from tritonclient.utils import InferenceServerException

from tests.support.repository_process import RepositoryProcess


@pytest.fixture
def client(service: RepositoryProcess) -> Iterator[rpc.InferenceServerClient]:
    with rpc.InferenceServerClient(service.rpc_address) as made:
        yield made


def texts(name: str, *given: str) -> list[rpc.InferInput]:
    made = rpc.InferInput(name, [len(given), 1], "BYTES")
    made.set_data_from_numpy(np.array([[text.encode()] for text in given], object))
    return [made]


def states(service: RepositoryProcess) -> dict[str, Any]:
    rows = service.http("/v2/repository/index", b"").json
    return {row["name"]: row for row in rows}


def test_an_ensemble_joins_python_and_onnx_models(client: rpc.InferenceServerClient) -> None:
    answer = client.infer("whole", texts("TEXT", "ab", "c"))
    numbers = np.zeros((2, 4), np.float32)
    numbers[0, :2], numbers[1, 0] = [2 * ord("a"), 2 * ord("b")], 2 * ord("c")
    np.testing.assert_array_equal(answer.as_numpy("NUMBERS"), numbers)
    sums = (numbers * np.float32(4500)).sum(axis=1)
    assert [one.decode() for one in answer.as_numpy("LABEL")[:, 0]] == [f"ab={sums[0]:g}", f"c={sums[1]:g}"]


def test_an_ensemble_stands_in_another(client: rpc.InferenceServerClient) -> None:
    inner = client.infer("whole", texts("TEXT", "hello")).as_numpy("LABEL")
    np.testing.assert_array_equal(client.infer("nested", texts("A", "hello")).as_numpy("B"), inner)


def test_a_model_without_a_configuration_tells_what_its_file_says(client: rpc.InferenceServerClient) -> None:
    config = client.get_model_config("scaled", as_json=True)["config"]
    assert (config["backend"], config["max_batch_size"]) == ("onnxruntime", 4)
    assert [one["name"] for one in config["input"]] == ["x"]
    assert "dynamic_batching" in config


def test_a_python_model_completes_its_configuration_and_asks_other_models(
    client: rpc.InferenceServerClient,
) -> None:
    config = client.get_model_config("asks", as_json=True)["config"]
    assert (config["max_batch_size"], config["input"][0]["name"]) == (4, "TEXT")
    assert client.infer("asks", texts("TEXT", "hello")).as_numpy("TOLD")[0, 0] == b"hello"
    told = client.infer("asks", texts("TEXT", "lost")).as_numpy("TOLD")[0, 0]
    assert told.startswith(b"Model nobody - Error when running inference: "), told
    assert told.endswith(b"Request for unknown model: 'nobody' is not found")


def test_an_error_names_the_step_and_its_neighbours_are_answered(client: rpc.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as refused:
        client.infer("nested", texts("A", "raise"))
    told = refused.value.message()
    assert "in ensemble 'nested', step 1.2 ('words' version 1): " in told
    assert "ValueError: no such word" in told and "model.py(" in told
    assert client.infer("nested", texts("A", "x")).as_numpy("B").shape == (1, 1)


def test_a_request_that_kills_its_worker_is_refused_and_the_others_go_on(
    service: RepositoryProcess, client: rpc.InferenceServerClient
) -> None:
    with pytest.raises(InferenceServerException):
        client.infer("words", texts("TEXT", "exit"))
    assert client.infer("scaled", floats()).as_numpy("y").shape == (1, 4)
    assert client.infer("words", texts("TEXT", "abc")).as_numpy("IDS").shape == (1, 4)


def floats() -> list[rpc.InferInput]:
    made = rpc.InferInput("x", [1, 4], "FP32")
    made.set_data_from_numpy(np.ones((1, 4), np.float32))
    return [made]


def test_what_can_not_be_served_leaves_the_others_and_says_why(service: RepositoryProcess) -> None:
    rows = states(service)
    assert {name: row["state"] for name, row in rows.items()} == {
        "words": "READY", "labels": "READY", "scaled": "READY", "same": "READY", "whole": "READY",
        "nested": "READY", "asks": "READY",
        "misspelt": "UNAVAILABLE", "raises": "UNAVAILABLE", "lacking": "UNAVAILABLE",
    }  # fmt: skip
    assert (
        "line 2: unknown field 'max_batch_sise' in ModelConfig; did you mean max_batch_size?"
        in rows["misspelt"]["reason"]
    )
    assert "No module named 'nowhere_to_be_found'" in rows["raises"]["reason"]
    assert "contains models that are not available or ambiguous: gone" in rows["lacking"]["reason"]
    assert [service.http(f"/v2/health/{what}").status for what in ("live", "ready")] == [200, 400]
    for name, row in rows.items():
        if row["state"] != "READY":
            assert row["reason"].partition("\n")[0] in service.log
            answer = service.http(f"/v2/models/{name}/infer", b'{"inputs": []}')
            assert (answer.status, "has no available versions" in answer.json["error"]) == (404, True)


@pytest.mark.parametrize("length", ["-1", "100000"])
def test_a_length_of_the_json_that_can_not_be_is_refused(service: RepositoryProcess, length: str) -> None:
    headers = {"Inference-Header-Content-Length": length}
    answer = service.http("/v2/models/scaled/infer", b"{}", headers=headers)
    assert (answer.status, f"got: {length}" in answer.json["error"]) == (400, True)


def test_requests_of_several_callers_share_a_call_of_execute(client: rpc.InferenceServerClient) -> None:
    answers: list[Any] = []
    for n in range(32):
        client.async_infer(
            "words", texts("TEXT", f"t{n}"), lambda result, error: answers.append((result, error))
        )
    while len(answers) < 32:
        client.is_server_live()
    assert not [error for _, error in answers if error]
    told = client.get_inference_statistics("words", as_json=True)["model_stats"][0]
    assert max(int(batch["batch_size"]) for batch in told["batch_stats"]) > 1
