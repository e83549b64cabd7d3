"""What clients of KServe v2's gRPC get wrong, and what a running Triton (2.51) told them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

from client.protos import kserve_v2_pb2 as messages
from client.protos.kserve_v2_pb2 import InferParameter, ModelInferRequest, ModelInferResponse
from tests.support.service_process import ServiceProcess

SERVICE = "/inference.GRPCInferenceService/"
ROW = np.arange(16, dtype=np.int32).tobytes()
NO_NUMBER = (
    "failed to get model version from specified version string '{}' (details: stol), version should be"
)
BELOW_ZERO = "invalid model version specified '{}' , version should be an integral value > 0"
BYTES = (1).to_bytes(4, "little") + b"a"
INDICATOR = (
    "[request id: r] incomplete string length indicator for inference input 'INPUT0' for model "
    "'identity_string', expecting 4 bytes but only {} bytes available. Please make sure the string length "
    "indicator is in one buffer."
)
CUT = (
    "incomplete string data for inference input 'INPUT0', expecting string of length 3 but only 2 bytes "
    "available"
)


@pytest.fixture(scope="module")
def simple(triton: Callable[[str], ServiceProcess]) -> ServiceProcess:
    return triton("simple")


def request(**fields: Any) -> ModelInferRequest:
    asked = ModelInferRequest(model_name="simple", raw_input_contents=[ROW, ROW], **fields)
    for name in ("INPUT0", "INPUT1"):
        asked.inputs.add(name=name, datatype="INT32", shape=[1, 16])
    return asked


def refusal(service: ServiceProcess, method: str, asked: Any) -> tuple[str, str]:
    """Code and words."""
    with pytest.raises(grpc.RpcError) as caught:
        service.raw_rpc(asked.SerializeToString(), method=SERVICE + method)
    return caught.value.code().name, caught.value.details()


def infer(service: ServiceProcess, asked: ModelInferRequest) -> ModelInferResponse:
    return ModelInferResponse.FromString(
        service.raw_rpc(asked.SerializeToString(), method=SERVICE + "ModelInfer")
    )


@pytest.mark.parametrize("version", ["1", "01", "+1", " 1", "1 ", "1x", "1.0"])
def test_of_a_version_the_number_in_front_counts(simple: ServiceProcess, version: str) -> None:
    assert infer(simple, request(model_version=version)).model_version == "1"
    asked = messages.ModelReadyRequest(name="simple", version=version).SerializeToString()
    assert messages.ModelReadyResponse.FromString(simple.raw_rpc(asked, method=SERVICE + "ModelReady")).ready


@pytest.mark.parametrize(
    ("version", "code", "told"),
    [
        ("x", "INVALID_ARGUMENT", NO_NUMBER),
        ("9" * 20, "INVALID_ARGUMENT", NO_NUMBER),
        ("-1", "INVALID_ARGUMENT", BELOW_ZERO),
        ("0", "NOT_FOUND", "Request for unknown model: 'simple' version {} is not found"),
        ("2", "NOT_FOUND", "Request for unknown model: 'simple' version {} is not found"),
    ],
)
def test_versions_that_there_are_not(simple: ServiceProcess, version: str, code: str, told: str) -> None:
    found = refusal(simple, "ModelInfer", request(model_version=version))
    assert found[0] == code and found[1].startswith(told.format(version))


def test_raw_contents_of_no_input_are_passed_over(simple: ServiceProcess) -> None:
    asked = request()
    asked.raw_input_contents.append(b"more")
    assert infer(simple, asked).raw_output_contents[1] == bytes(64)


PARAMETERS = [
    (
        "priority",
        {"string_param": "1"},
        "type for 'priority' parameter, expected int64_param or uint64_param.",
    ),
    ("priority", {"int64_param": -1}, " for 'priority', expected value >= 0."),
    ("timeout", {"bool_param": True}, "type for 'timeout' parameter, expected int64_param."),
    (
        "sequence_id",
        {"double_param": 1},
        "type for 'sequence_id' parameter, expected int64_param or string_param.",
    ),
    ("sequence_start", {"int64_param": 1}, "type for 'sequence_start' parameter, expected bool_param."),
    ("sequence_end", {"string_param": "x"}, "type for 'sequence_end' parameter, expected bool_param."),
    (
        "triton_enable_empty_final_response",
        {"int64_param": 1},
        "type for 'triton_enable_empty_final_response' parameter, expected bool_param.",
    ),
    ("own", {}, "type for 'own' parameter, expected int64_param, bool_param, or string_param."),
]


@pytest.mark.parametrize(("name", "value", "told"), PARAMETERS)
def test_parameters_of_another_type(
    simple: ServiceProcess, name: str, value: dict[str, Any], told: str
) -> None:
    asked = request()
    asked.parameters[name].CopyFrom(InferParameter(**value))
    code, words = refusal(simple, "ModelInfer", asked)
    assert code == "INVALID_ARGUMENT"
    assert words.removeprefix("invalid value").strip() == told.strip()


def test_a_timeout_below_zero_is_one_beyond_every_deadline(simple: ServiceProcess) -> None:
    asked = request()
    asked.parameters["timeout"].int64_param = -1
    assert infer(simple, asked).outputs


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"int64_param": 0}, "invalid value for 'classification' parameter, expected >= 0"),
        ({"int64_param": -1}, "invalid value for 'classification' parameter, expected >= 0"),
        ({"uint64_param": 2}, "invalid value type for 'classification' parameter, expected int64_param"),
        ({"string_param": "2"}, "invalid value type for 'classification' parameter, expected int64_param"),
    ],
)
def test_classes_that_are_no_number(simple: ServiceProcess, value: dict[str, Any], told: str) -> None:
    asked = request()
    asked.outputs.add(name="OUTPUT0").parameters["classification"].CopyFrom(InferParameter(**value))
    assert refusal(simple, "ModelInfer", asked) == ("INVALID_ARGUMENT", told)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (BYTES + BYTES + b"x", INDICATOR.format(1)),
        (BYTES + b"\1\0", INDICATOR.format(2)),
        (BYTES + b"\3\0\0\0bc", CUT),
    ],
)
def test_texts_that_are_cut_short(triton: Callable[[str], ServiceProcess], raw: bytes, told: str) -> None:
    asked = ModelInferRequest(model_name="identity_string", id="r", raw_input_contents=[raw])
    asked.inputs.add(name="INPUT0", datatype="BYTES", shape=[1, 2])
    assert refusal(triton("identity_string"), "ModelInfer", asked) == ("INVALID_ARGUMENT", told)


def test_there_are_no_named_repositories(simple: ServiceProcess) -> None:
    told = "UNIMPLEMENTED", "'repository_name' specification is not supported"
    asked = {
        "RepositoryIndex": messages.RepositoryIndexRequest(repository_name="x"),
        "RepositoryModelLoad": messages.RepositoryModelLoadRequest(repository_name="x", model_name="simple"),
        "RepositoryModelUnload": messages.RepositoryModelUnloadRequest(
            repository_name="x", model_name="simple"
        ),
    }
    for method, message in asked.items():
        assert refusal(simple, method, message) == told


def test_dependents_are_unloaded_or_not(simple: ServiceProcess) -> None:
    asked = messages.RepositoryModelUnloadRequest(model_name="simple")
    asked.parameters["unload_dependents"].int64_param = 1
    told = "invalid value type for 'unload_dependents' parameter, expected bool_param."
    assert refusal(simple, "RepositoryModelUnload", asked) == ("INVALID_ARGUMENT", told)


def test_a_format_of_the_log_that_there_is_not(simple: ServiceProcess) -> None:
    asked = messages.LogSettingsRequest()
    asked.settings["log_format"].string_param = "x"
    told = "invalid argument for log_format, got: x"
    assert refusal(simple, "LogSettings", asked) == ("INVALID_ARGUMENT", told)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("sequence_id", -1, "attempt to access JSON non-string as string"),
        ("sequence_id", True, "attempt to access JSON non-string as string"),
        ("sequence_id", 1 << 64, "attempt to access JSON non-string as string"),
        ("sequence_start", 1, "attempt to access JSON non-boolean as boolean"),
        ("sequence_end", "x", "attempt to access JSON non-boolean as boolean"),
    ],
)
def test_sequences_of_another_type_over_http(
    simple: ServiceProcess, name: str, value: object, told: str
) -> None:
    tensor = {"datatype": "INT32", "shape": [1, 16], "data": list(range(16))}
    body = {
        "inputs": [{"name": "INPUT0", **tensor}, {"name": "INPUT1", **tensor}],
        "parameters": {name: value},
    }
    answer = simple.http("/v2/models/simple/infer", json.dumps(body))
    assert (answer.status, answer.json) == (500, {"error": f"Unable to parse '{name}': {told}"})
