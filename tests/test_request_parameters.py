"""What a client sends as `parameters` reaches the hooks, over every door that has such."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from service_process import APPS, ServiceProcess

GIVEN = {"top_k": 3, "lang": "zh", "exact": True}


@pytest.fixture(scope="module", params=["each", "batch"])
def service(request: pytest.FixtureRequest) -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "parameters.py", env={"HOOKS": request.param}) as started:
        yield started


def told(client: Any, module: Any, parameters: dict[str, Any]) -> Any:
    text = module.InferInput("text", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"x"], object))
    protocols_own = {"priority": 1, "timeout": 20_000_000, "sequence_id": 7, "sequence_start": True}
    answer = client.infer("test", [text], parameters=parameters, **protocols_own)
    return json.loads(answer.as_numpy("told")[0])


def test_both_hooks_find_the_parameters_of_their_request(service: ServiceProcess) -> None:
    http = tritonclient.http.InferenceServerClient(f"127.0.0.1:{service.http_port}")
    assert told(http, tritonclient.http, GIVEN) == {"before": GIVEN, "after": GIVEN}
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{service.rpc_port}") as grpc:
        assert told(grpc, tritonclient.grpc, GIVEN) == {"before": GIVEN, "after": GIVEN}
        assert told(grpc, tritonclient.grpc, {}) == {"before": {}, "after": {}}


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
    assert json.loads(answer["outputs"][0]["data"][0])["after"] == {"?": "?"}
