"""What a model tells of its work over KServe v2."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as v2_grpc
import tritonclient.http as v2

from tests.support import models
from tests.support.service_process import APPS, ServiceProcess
from tests.support.triton_recordings import RECORDINGS, recorded_grpc, recorded_http


@pytest.fixture
def service(model_folder: Path) -> Iterator[ServiceProcess]:
    conf = {"model_config": str(models.classifier(model_folder)), "device_type": 0}
    config = {"op": {"model": {"batch_size": 8, "local_service_conf": conf, "max_batch_rows": 16}}}
    with ServiceProcess(APPS / "model.py", config) as process:
        yield process


def feeds(rows: int) -> list[v2.InferInput]:
    given = []
    for name in ("input_ids", "token_type_ids", "attention_mask"):
        one = v2.InferInput(name, [rows, 3], "INT64")
        one.set_data_from_numpy(np.ones((rows, 3), np.int64))
        given.append(one)
    return given


def test_rows_runs_and_times_are_counted_as_they_were(service: ServiceProcess) -> None:
    with v2.InferenceServerClient(f"127.0.0.1:{service.http_port}") as asking:
        for rows in (1, 3, 3):
            asking.infer("model", feeds(rows))
        texts = dict.fromkeys(("input_ids", "token_type_ids", "attention_mask"), "[[1, 1]]")
        service.predict(texts)
        refused = service.ask({"input_ids": "[[1, 1]]"})
        assert refused["err_no"] != 0

        (op,) = asking.get_inference_statistics("model")["model_stats"]
        assert (op["inference_count"], op["execution_count"]) == (1 + 3 + 3 + 1, 4)
        sizes = {batch["batch_size"]: batch["compute_infer"]["count"] for batch in op["batch_stats"]}
        assert sizes == {1: 2, 3: 2}
        stats = op["inference_stats"]
        assert (stats["success"]["count"], stats["fail"]["count"]) == (4, 1)
        infer_ns = sum(batch["compute_infer"]["ns"] for batch in op["batch_stats"])
        assert 0 < infer_ns <= stats["compute_infer"]["ns"] < stats["success"]["ns"]

        both = {each["name"]: each for each in asking.get_inference_statistics()["model_stats"]}
        whole = both["test"]["inference_stats"]
        assert (whole["success"]["count"], whole["fail"]["count"]) == (1, 1)
        assert both["test"]["last_inference"] >= both["model"]["last_inference"] - 1000 > 1e12
        with v2_grpc.InferenceServerClient(f"127.0.0.1:{service.rpc_port}") as over_grpc:
            told = over_grpc.get_inference_statistics("model").model_stats[0]
        assert told.inference_stats.success.count == 4
        assert told.batch_stats[1].compute_infer.ns == op["batch_stats"][1]["compute_infer"]["ns"]


def test_they_have_the_recorded_form(triton: Callable[[str], ServiceProcess]) -> None:
    recorded = {row["id"]: row for row in RECORDINGS}
    service = triton("simple")
    infer = recorded["infer.json.version"]["request"]
    assert service.http(infer["path"], infer["body"]["text"]).status == 200
    over_http = service.http(recorded["stats.model"]["request"]["path"]).json
    expected = recorded_http(recorded["stats.model"]).document
    assert form(over_http) == form(expected)
    with v2_grpc.InferenceServerClient(f"127.0.0.1:{service.rpc_port}") as asking:
        over_grpc = asking.get_inference_statistics("simple", as_json=True)
    (told,), (row,) = over_grpc["model_stats"], recorded_grpc(recorded["g.stats"])[1]["model_stats"]
    assert form(row).items() <= form(told).items()


def form(document: Any) -> Any:
    """Its names and texts, without its numbers; of a list the first element."""
    if isinstance(document, dict):
        return {name: form(value) for name, value in document.items() if not _is_number(value)}
    return [form(each) for each in document[:1]] if isinstance(document, list) else document


def _is_number(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and value.isdecimal())


def test_the_metrics_by_tritons_names_are_the_statistics(service: ServiceProcess) -> None:
    with v2.InferenceServerClient(f"127.0.0.1:{service.http_port}") as asking:
        for rows in (1, 3):
            asking.infer("model", feeds(rows))
        texts = dict.fromkeys(("input_ids", "token_type_ids", "attention_mask"), "[[1, 1]]")
        service.predict(texts)
        assert service.ask({"input_ids": "[[1, 1]]"})["err_no"] != 0
        for model, succeeded, counted in (("model", 3, 5), ("test", 1, 1)):
            labels = {"model": model, "version": "1"}
            assert service.metric("nv_inference_request_success", **labels) == succeeded
            assert service.metric("nv_inference_count", **labels) == counted
            assert service.metric("nv_inference_request_failure", **labels) == 1
            assert service.metric("nv_inference_pending_request_count", **labels) == 0
            (stats,) = asking.get_inference_statistics(model)["model_stats"]
            assert service.metric("nv_inference_exec_count", **labels) == stats["execution_count"] == 3
            for name, part in (
                ("request", "success"),
                ("queue", "queue"),
                ("compute_infer", "compute_infer"),
            ):
                expected = stats["inference_stats"][part]["ns"] // 1000
                assert service.metric(f"nv_inference_{name}_duration_us", **labels) == expected


def test_those_of_what_is_not_there_are_refused_in_words_of_their_own(
    triton: Callable[[str], ServiceProcess],
) -> None:
    service = triton("simple")
    addresses = {v2: service.http_port, v2_grpc: service.rpc_port}
    for client, port in addresses.items():
        with client.InferenceServerClient(f"127.0.0.1:{port}") as asking:
            for asked, told in (
                (("nope",), "requested model 'nope' is not available"),
                (("simple", "7"), "requested model version is not available for model 'simple'"),
                (("simple", "0"), "requested model version is not available for model 'simple'"),
            ):
                with pytest.raises(v2.InferenceServerException, match=told) as refusal:
                    asking.get_inference_statistics(*asked)
                assert refusal.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")


def test_failures_are_counted_by_what_they_come_from(triton: Callable[[str], ServiceProcess]) -> None:
    service = triton("err_each")
    page = "/v2/models/err_each/infer"

    def counted() -> dict[str, float]:
        labels = ("OTHER", "CANCELED", "REJECTED", "BACKEND")
        return {one: service.metric("nv_inference_request_failure", reason=one) for one in labels}

    before = counted()
    one = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1]}
    assert service.http(page, json.dumps({"inputs": [{**one, "data": [7]}]})).status == 500  # the hook raises
    assert service.http(page, json.dumps({"inputs": [{**one, "data": ["x"]}]})).status == 500
    assert counted() == {**before, "BACKEND": before["BACKEND"] + 1, "OTHER": before["OTHER"] + 1}


def test_the_configuration_tells_tensors_batching_and_instances(service: ServiceProcess) -> None:
    with v2.InferenceServerClient(f"127.0.0.1:{service.http_port}") as over_http:
        told = over_http.get_model_config("model")
        assert told["max_batch_size"] == 16
        assert told["input"][0]["data_type"] == "TYPE_INT64" and told["input"][0]["dims"] == [-1]
        assert told["instance_group"][0]["count"] == 1 and "dynamic_batching" in told
        with v2_grpc.InferenceServerClient(f"127.0.0.1:{service.rpc_port}") as over_grpc:
            config = over_grpc.get_model_config("model").config
        assert (config.max_batch_size, config.input[0].dims) == (16, [-1])


def test_the_configuration_tells_how_pixels_lie(triton: Callable[[str], ServiceProcess]) -> None:
    told = triton("pixels").http("/v2/models/pixels/config").json["input"]
    assert {one["name"]: one["format"] for one in told} == {
        "FIRST": "FORMAT_NCHW",
        "LAST": "FORMAT_NHWC",
        "BOTH": "FORMAT_NONE",
        "TEXTS": "FORMAT_NONE",
    }
    with v2_grpc.InferenceServerClient(f"127.0.0.1:{triton('pixels').rpc_port}") as asking:
        config = asking.get_model_config("pixels").config
    assert [one.format for one in config.input] == [2, 1, 0, 0]


def test_more_rows_than_a_model_takes_are_refused(service: ServiceProcess) -> None:
    refused = pytest.raises(v2.InferenceServerException, match="batch-size must be <= 16 for 'model'")
    with v2.InferenceServerClient(f"127.0.0.1:{service.http_port}") as asking, refused:
        asking.infer("model", feeds(17))
