"""Request options of a client reach the hooks, over every endpoint that has options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.support.service_process import APPS, ServiceProcess

GIVEN = {"top_k": 3, "lang": "zh", "exact": True}


@pytest.fixture(scope="module", params=["each", "batch", "mixed"])
def service(request: pytest.FixtureRequest) -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "request_options.py", env={"HOOKS": request.param}) as started:
        yield started


def told(client: Any, module: Any, **given: Any) -> Any:
    text = module.InferInput("text", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"x"], object))
    answer = client.infer("test", [text], sequence_id=7, sequence_start=True, **given)
    return json.loads(answer.as_numpy("told")[0])


def test_both_hooks_find_what_was_said_of_their_request(service: ServiceProcess) -> None:
    said = {"request_id": "r-1", "priority": 2, "timeout": 20_000_000, "parameters": GIVEN}
    options = ["r-1", 2, 20_000_000, GIVEN]
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{service.http_port}") as http:
        assert told(http, tritonclient.http, **said) == {"before": options, "after": options}
        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{service.rpc_port}") as grpc:
            assert told(grpc, tritonclient.grpc, **said) == {"before": options, "after": options}
            assert told(grpc, tritonclient.grpc)["after"] == ["", 0, 0, {}]
            assert told(grpc, tritonclient.grpc, timeout=30_000_000)["after"] == ["", 0, 30_000_000, {}]


def test_the_hooks_find_parameters_of_v1_and_of_generate(service: ServiceProcess) -> None:
    body = json.dumps({"instances": [{"text": "x"}], "parameters": GIVEN})
    (prediction,) = service.http("/v1/models/test:predict", body).json["predictions"]
    assert json.loads(prediction["told"])["after"] == ["", 0, 0, GIVEN]
    generated = service.http("/v2/models/test/generate", '{"text": "x", "id": "g", "top_k": 3}').json
    assert json.loads(generated["told"])["before"] == ["g", 0, 0, {"top_k": 3}]


@pytest.mark.parametrize("value", ["[1]", "{}", "null", "1" + "0" * 30])
def test_a_parameter_of_another_type_is_refused(service: ServiceProcess, value: str) -> None:
    body = '{"parameters":{"p":%s},"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","data":["x"]}]}'
    answer = service.http("/v2/models/test/infer", body % value)
    assert (answer.status, "parameter 'p' has invalid type" in answer.json["error"]) == (400, True)


def test_a_text_that_no_message_can_hold_fails_nobody(service: ServiceProcess) -> None:
    half = "\\ud800"
    body = (
        '{"id":"%s","parameters":{"%s":"%s"},"inputs":[{"name":"text","shape":[1],"datatype":"BYTES",'
        '"data":["x"]}]}'
    )
    answer = service.http("/v2/models/test/infer", body % (half, half, half)).json
    assert answer["id"] == "?"
    assert json.loads(answer["outputs"][0]["data"][0])["after"] == ["?", 0, 0, {"?": "?"}]
