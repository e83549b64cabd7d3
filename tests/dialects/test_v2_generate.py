"""KServe v2's generate: an object of inputs in, an object of outputs back, by itself or as an event."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.service_process import APPS, HttpAnswer, ServiceProcess

Triton = Callable[[str], ServiceProcess]


@pytest.fixture(scope="module")
def echo() -> Iterator[ServiceProcess]:
    """A key/value service that declares nothing."""
    with ServiceProcess(APPS / "echo.py") as service:
        yield service


def generate(service: ServiceProcess, document: Any, *, model: str = "", stream: bool = False) -> HttpAnswer:
    path = f"/v2/models/{model or service.name}/generate{'_stream' if stream else ''}"
    return service.http(path, json.dumps(document))


def test_lists_are_rows_of_tensors_and_come_back_as_lists(triton: Triton) -> None:
    given = {"INPUT0": list(range(16)), "INPUT1": [1] * 16, "id": "one"}
    answer = generate(triton("simple"), given)
    assert answer.json == {
        "OUTPUT0": list(range(1, 17)),
        "OUTPUT1": list(range(-1, 15)),
        "id": "one",
        "model_name": "simple",
        "model_version": "1",
    }


def test_an_element_by_itself_is_answered_by_itself(triton: Triton) -> None:
    answer = generate(triton("identity_string"), {"INPUT0": "straße"})
    assert answer.json["OUTPUT0"] == "straße"


def test_a_stream_has_the_answer_as_its_only_event(triton: Triton) -> None:
    answer = generate(triton("identity_fp32"), {"INPUT0": [0.5, 2]}, stream=True)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.body.startswith(b"data: ") and answer.body.endswith(b"\n\n")
    assert json.loads(answer.body.removeprefix(b"data: "))["OUTPUT0"] == [0.5, 2.0]


def test_a_key_value_service_is_asked_by_its_keys(echo: ServiceProcess) -> None:
    answer = generate(echo, {"number": "21", "text": "straße"})
    assert (answer.json["doubled"], answer.json["text"]) == ("42", "straße")


@pytest.mark.parametrize("stream", [False, True], ids=["generate", "stream"])
@pytest.mark.parametrize(
    ("document", "status", "words"),
    [
        ({"INPUT0": [1] * 16}, 400, "missing required input(s) ['INPUT1']"),
        ({"INPUT0": [1] * 15, "INPUT1": [1] * 16}, 400, "unexpected shape for input 'INPUT0'"),
        ({"INPUT0": ["a"] * 16, "INPUT1": [1] * 16}, 500, "attempt to access JSON non-signed-integer"),
        ({"INPUT0": None, "INPUT1": [1] * 16}, 400, "input 'INPUT0' is neither an element nor a list"),
        ({"INPUT0": [1] * 16, "INPUT1": [1] * 16, "more": [1]}, 400, "parameter 'more' has invalid type"),
        ([1], 500, "attempt to access JSON non-object as object"),
    ],
    ids=["missing", "shape", "type", "null", "parameter", "no-object"],
)
def test_what_does_not_fit_is_refused(
    triton: Triton, stream: bool, document: Any, status: int, words: str
) -> None:
    answer = generate(triton("simple"), document, stream=stream)
    assert (answer.status, words in answer.json["error"]) == (status, True), answer.body


def test_half_precision_has_no_form_in_json(triton: Triton) -> None:
    answer = generate(triton("identity_fp16"), {"INPUT0": [1.5]})
    assert (answer.status, "FP16 data via JSON is not supported" in answer.json["error"]) == (400, True)
