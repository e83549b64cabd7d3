"""A repository's models at endpoints that Triton lacks: key/value, /openapi.json and the list of its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from client.protos.pipeline_service_pb2 import Request
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import HttpAnswer
from tests.support.triton_repository import write_model


def predict(service: RepositoryProcess, model: str, **message: Any) -> HttpAnswer:
    return service.http(f"/{model}/prediction", json.dumps(message))


def test_an_ensemble_answers_a_key_value_message(service: RepositoryProcess) -> None:
    answer = predict(service, "whole", key=["TEXT"], value=["ab"])
    assert answer.status == 200, answer
    told = dict(zip(answer.json["key"], answer.json["value"], strict=True))
    assert told == {"LABEL": "ab=1.755e+06", "NUMBERS": "array([[194., 196.,   0.,   0.]], dtype=float32)"}


def test_a_model_of_one_text_takes_it_under_any_key_and_over_grpc(service: RepositoryProcess) -> None:
    assert predict(service, "same", key=["0"], value=["国足"]).json["value"] == ["国足"]
    told = service.rpc(Request(name="nested", method="prediction", key=["A"], value=["x"]))
    assert (told.err_no, list(told.key), list(told.value)) == (0, ["B"], ["x=1.08e+06"])


def test_rows_of_texts_and_numbers_come_as_tensors(service: RepositoryProcess) -> None:
    texts = {"name": "I", "elem_type": 12, "shape": [2, 1], "str_data": ["a", "b"]}
    assert predict(service, "same", tensors=[texts]).json["value"] == ["['a', 'b']"]
    numbers = {"name": "x", "elem_type": 1, "shape": [1, 4], "float_data": [1, 2, 3, 4]}
    assert predict(service, "scaled", tensors=[numbers]).json["key"] == ["y"]


@pytest.mark.parametrize(
    ("model", "message", "status", "told"),
    [
        ("gone", {"key": ["a"], "value": ["b"]}, 404, "there is no service 'gone'"),
        ("misspelt", {"key": ["a"], "value": ["b"]}, 404, "there is no service 'misspelt'"),
        ("labels", {"key": ["TEXT"], "value": ["b"]}, 400, "model 'labels' needs 'SCORES'"),
        ("scaled", {"key": ["x"], "value": ["1"]}, 400, "send it under 'tensors'"),
        ("whole", {"key": ["TEXT", "B"], "value": ["b", "c"]}, 400, "takes no 'B'; its inputs are TEXT"),
        (
            "scaled",
            {"tensors": [{"name": "x", "elem_type": 1, "shape": [2], "float_data": [1, 2]}]},
            400,
            "input 'x' of model 'scaled' is FP32 [-1, 4]; the shape [2] was given",
        ),
    ],
)  # fmt: skip
def test_a_message_that_a_model_does_not_take_is_refused(
    service: RepositoryProcess, model: str, message: dict[str, Any], status: int, told: str
) -> None:
    answer = predict(service, model, **message)
    assert (answer.status, told in answer.json["err_msg"]) == (status, True), answer


def test_each_model_has_a_page_with_examples_that_are_answered_as_they_stand(
    service: RepositoryProcess,
) -> None:
    document = service.http("/openapi.json").json
    cards = document["x-models"]
    assert {name for name, card in cards.items() if card["state"] == "READY"} == {
        "asks", "labels", "nested", "same", "scaled", "whole", "words"
    }  # fmt: skip
    assert "No module named" in cards["raises"]["reason"]
    assert "did you mean max_batch_size?" in document["x-unavailable"]["misspelt"]
    asked = set()
    for path, methods in document["paths"].items():
        told = methods.get("post", {})
        if cards.get(told.get("x-model"), {}).get("state") != "READY":
            continue
        example = told["requestBody"]["content"]["application/json"]["example"]
        answer = service.http(path, json.dumps(example))
        assert answer.status == 200, (path, answer)
        asked.add((told["x-model"], told["tags"][0]))
    assert {model for model, _ in asked} == {name for name in cards if cards[name]["state"] == "READY"}
    assert {model for model, endpoint in asked if endpoint == "key/value"} == {
        "asks", "nested", "same", "whole", "words"
    }  # fmt: skip


def test_the_level_of_the_log_follows_the_log_settings(service: RepositoryProcess) -> None:
    line = "POST /v2/models/same/infer: ok in"
    body = json.dumps({"inputs": [{"name": "I", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}]})
    assert service.http("/v2/models/same/infer", body).status == 200
    assert line not in service.log
    changed = service.http("/v2/logging", json.dumps({"log_verbose_level": 1}))
    assert changed.json["log_verbose_level"] == 1
    assert service.http("/v2/models/same/infer", body).status == 200
    service.wait_for_log(line)
    assert service.http("/v2/logging", json.dumps({"log_verbose_level": 0})).status == 200
    lines = service.log.count(line)
    assert service.http("/v2/models/same/infer", body).status == 200
    assert service.log.count(line) == lines


VECTORS = """
backend: "python"
input { name: "text" data_type: TYPE_STRING dims: -1 }
output { name: "embedding" data_type: TYPE_FP32 dims: [-1, -1] }
"""
LENGTHS = """
class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(request, "text").as_numpy() for request in requests]
        vectors = [np.array([[len(text.decode()), 1] for text in many], np.float32) for many in texts]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("embedding", one)]) for one in vectors]
"""
BOTH = """
platform: "ensemble"
input { name: "text" data_type: TYPE_STRING dims: -1 }
output { name: "embedding" data_type: TYPE_FP32 dims: [-1, -1] }
version_policy { all { } }
ensemble_scheduling { step { model_name: "vectors" model_version: -1
  input_map { key: "text" value: "text" } output_map { key: "embedding" value: "embedding" } } }
"""


def test_an_ensemble_of_embeddings_answers_openai_s_and_tei_s_clients(tmp_path: Path) -> None:
    write_model(tmp_path, "vectors", VECTORS, LENGTHS)
    (write_model(tmp_path, "both", BOTH) / "2").mkdir()
    with RepositoryProcess(tmp_path) as served:
        body = {"input": ["a", "国足"], "model": "that of another server"}
        answer = served.http("/v1/embeddings", json.dumps(body))
        assert answer.status == 200, answer
        assert [one["embedding"] for one in answer.json["data"]] == [[1, 1], [2, 1]]
        assert served.http("/embed", json.dumps({"inputs": "abc"})).json == [[3, 1]]
        refused = served.http("/v1/embeddings", json.dumps({"input": [1, 2]}))
        assert (refused.status, "the model takes texts alone" in refused.json["error"]["message"]) == (
            400,
            True,
        )
