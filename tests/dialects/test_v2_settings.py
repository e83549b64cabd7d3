"""Trace and log settings of KServe v2, asked and changed with Triton's clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tritonclient.grpc as v2_grpc
import tritonclient.http as v2_http
from tritonclient.utils import InferenceServerException

from tests.support.service_process import ServiceProcess

DEFAULT_RATE = "1000"


@pytest.fixture(params=["http", "grpc"])
def client(triton: Callable[[str], ServiceProcess], request: pytest.FixtureRequest) -> Iterator[Any]:
    service = triton("simple")
    if request.param == "http":
        one = v2_http.InferenceServerClient(f"127.0.0.1:{service.http_port}")
    else:
        one = v2_grpc.InferenceServerClient(f"127.0.0.1:{service.rpc_port}")
    cleared = {"trace_rate": None, "trace_count": None, "log_frequency": None}
    one.update_trace_settings(settings=cleared)
    one.update_trace_settings("simple", cleared)
    yield one
    one.update_log_settings({"log_info": True, "log_verbose_level": 0, "log_format": "default"})
    one.close()


def value(told: Any, name: str) -> Any:
    """Of a setting, over either protocol."""
    if isinstance(told, dict):
        return told[name]
    setting = told.settings[name]
    if hasattr(setting, "value"):
        return setting.value[0]
    return getattr(setting, setting.WhichOneof("parameter_choice"))


def test_trace_settings_are_echoed_and_a_model_has_its_own(client: Any) -> None:
    assert value(client.update_trace_settings(settings={"trace_rate": "7"}), "trace_rate") == "7"
    assert value(client.get_trace_settings("simple"), "trace_rate") == "7"
    told = client.update_trace_settings("simple", {"trace_rate": "9", "trace_count": "3"})
    assert (value(told, "trace_rate"), value(told, "trace_count")) == ("9", "3")
    assert value(client.get_trace_settings(), "trace_rate") == "7"
    told = client.update_trace_settings("simple", {"trace_rate": None})
    assert (value(told, "trace_rate"), value(told, "trace_count")) == ("7", "3")
    assert value(client.update_trace_settings(settings={"trace_rate": None}), "trace_rate") == DEFAULT_RATE


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"trace_rate": "x"}, "Unable to parse 'trace_rate', got: x"),
        ({"trace_rate": "-1"}, "'trace_rate', value is out of range [ 0, 4294967295 ], got: -1"),
        ({"trace_count": "-2"}, "'trace_count', value is out of range"),
        ({"log_frequency": "9" * 25}, "'log_frequency', value is out of range"),
        ({"trace_file": "x"}, "trace file location can not be updated"),
        ({"trace_level": ["OFF", "TENSORS"]}, "Expect only one trace level 'OFF'"),
        ({"trace_level": ["TENSORS"]}, "trace file name is not given"),
    ],
)
def test_trace_settings_that_can_not_be_are_refused_and_change_nothing(
    client: Any, settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(InferenceServerException) as refused:
        client.update_trace_settings(
            settings={**settings, "log_frequency": settings.get("log_frequency", "5")}
        )
    assert told in refused.value.message()
    assert value(client.get_trace_settings(), "log_frequency") == "0"


def test_no_model_no_trace_settings(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="unknown model : nope"):
        client.get_trace_settings("nope")


def test_log_settings_are_echoed_and_nothing_else_is_taken(client: Any) -> None:
    told = client.update_log_settings({"log_info": False, "log_verbose_level": 2, "log_format": "ISO8601"})
    assert [value(told, f"log_{name}") for name in ("info", "verbose_level", "format", "error")] == [
        False, 2, "ISO8601", True,
    ]  # fmt: skip
    for settings in ({"log_file": "x"}, {"log_format": "x"}):
        with pytest.raises(InferenceServerException):
            client.update_log_settings({**settings, "log_error": False})
    assert value(client.get_log_settings(), "log_error") is True
    assert value(client.get_log_settings(), "log_verbose_level") == 2


@pytest.mark.parametrize(
    ("path", "document", "status"),
    [
        ("/v2/trace/setting", [], 500),
        ("/v2/trace/setting", {"trace_rate": 5}, 500),
        ("/v2/trace/setting", {"trace_level": "OFF"}, 500),
        ("/v2/trace/setting", {"trace_level": [1]}, 500),
        ("/v2/logging", [], 500),
        ("/v2/logging", {"log_info": 1}, 500),
        ("/v2/logging", {"log_verbose_level": 1 << 31}, 400),
        ("/v2/logging", {"log_format": "x"}, 503),
    ],
)
def test_what_no_client_would_send_is_refused(
    triton: Callable[[str], ServiceProcess], path: str, document: Any, status: int
) -> None:
    answer = triton("simple").http(path, json.dumps(document))
    assert answer.status == status and answer.json["error"]


def test_other_methods_are_refused(triton: Callable[[str], ServiceProcess]) -> None:
    for path in ("/v2/logging", "/v2/trace/setting", "/v2/models/simple/trace/setting"):
        assert triton("simple").http(path, method="PUT").status == 405
    assert triton("simple").http("/v2/systemsharedmemory/register").status == 405
