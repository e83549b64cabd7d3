"""Ops whose model a KServe v2 service runs: `server_endpoints` with `client_type: grpc`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.support.free_ports import free_port
from tests.support.service_process import APPS, ServiceProcess, wait_until
from tests.support.v2_server import V2Model, V2Server


def _scaled(feeds: dict[str, Any]) -> dict[str, Any]:
    x = feeds["x"]
    if (x == 13).any():
        raise ValueError("13 is refused here")
    return {"doubled": x * np.float32(2), "rows": np.full((len(x), 1), len(x))}


def _upper(feeds: dict[str, Any]) -> dict[str, Any]:
    return {"upper": [text.decode().upper().encode() for text in feeds["text"]]}


def models() -> dict[str, V2Model]:
    scale = ({"x": ("FP32", [-1, 2])}, {"doubled": ("FP32", [-1, 2]), "rows": ("INT64", [-1, 1])}, _scaled)
    upper = ({"text": ("BYTES", [-1])}, {"upper": ("BYTES", [-1])}, _upper)
    ids = ({"ids": ("INT32", [-1, -1])}, {"ids": ("INT32", [-1, -1])}, lambda feeds: feeds)
    strange = ({"x": ("FP8", [-1])}, {"y": ("FP32", [-1])}, lambda feeds: feeds)
    return {
        "scale": V2Model(*scale),
        "scale typed": V2Model(*scale, typed=True),
        "upper": V2Model(*upper),
        "upper typed": V2Model(*upper, typed=True),
        "ids": V2Model(*ids),
        "strange": V2Model(*strange),
    }


@pytest.fixture
def server() -> Iterator[V2Server]:
    with V2Server(models()) as server:
        yield server


class Remote(NamedTuple):
    """A service with an Op for each model, of the model's name, and the models."""

    service: ServiceProcess
    models: dict[str, V2Model]


@pytest.fixture(scope="module")
def remote() -> Iterator[Remote]:
    served = {name: model for name, model in models().items() if name != "strange"}
    with V2Server(served) as server:
        section = {"server_endpoints": [f"127.0.0.1:{server.port}"], "client_type": "grpc", "batch_size": 8}
        config = {"op": dict.fromkeys(served, section)}
        with ServiceProcess(APPS / "remote.py", config, arguments=["ask", *served]) as service:
            yield Remote(service, served)


def asking(port: int, model: str, *, wait: bool = True, **op: Any) -> ServiceProcess:
    section = {"server_endpoints": [f"127.0.0.1:{port}"], "client_type": "grpc", "model_name": model, **op}
    return ServiceProcess(APPS / "remote.py", {"op": {"ask": section}}, arguments=["ask"], wait=wait)


def arrays(**named: tuple[str, Any]) -> dict[str, str]:
    return {"arrays": json.dumps(named)}


def outputs(answer: dict[str, str]) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in answer.items()}


@pytest.mark.parametrize("model", ["scale", "scale typed"])
def test_arrays_are_converted_to_what_the_model_takes(remote: Remote, model: str) -> None:
    answer = remote.service.predict({"op": model, **arrays(x=("float64", [[1, 2.5], [3, 4]]))})
    assert outputs(answer) == {"doubled": [[2, 5], [6, 8]], "rows": [[2], [2]]}
    (tensor,) = remote.models[model].requests[-1].inputs
    assert (tensor.datatype, list(tensor.shape)) == ("FP32", [2, 2])


@pytest.mark.parametrize("model", ["upper", "upper typed"])
def test_texts_are_bytes_tensors(remote: Remote, model: str) -> None:
    answer = remote.service.predict({"op": model, **arrays(text=("str", ["straße", ""]))})
    assert outputs(answer) == {"upper": ["STRASSE", ""]}


def test_requests_travel_as_the_rows_of_one(remote: Remote, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    requests = [{"op": "scale", **arrays(x=("float32", [[n, n]] * (n + 1)))} for n in range(3)]
    held = {"op": "scale", **arrays(x=("float32", [[0, 0]])), "gate": str(gate)}
    answers = remote.service.ask_together(requests, held, gate)
    for n, answer in enumerate(answers):
        assert answer["err_no"] == 0, answer
        found = outputs(dict(zip(answer["key"], answer["value"], strict=True)))
        assert found["doubled"] == [[2 * n, 2 * n]] * (n + 1)
        assert found["rows"][0][0] >= 6
    assert max(request.inputs[0].shape[0] for request in remote.models["scale"].requests) >= 6


def test_a_request_that_the_model_refuses_spoils_no_other(remote: Remote, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    requests = [{"op": "scale", **arrays(x=("float32", [[n, n]]))} for n in (12, 13, 14)]
    held = {"op": "scale", **arrays(x=("float32", [[0, 0]])), "gate": str(gate)}
    good, bad, other = remote.service.ask_together(requests, held, gate)
    assert (good["err_no"], other["err_no"]) == (0, 0)
    assert bad["err_no"] == 5000
    assert "13 is refused here" in bad["err_msg"]


@pytest.mark.parametrize(
    ("model", "feeds", "told"),
    [
        ("ids", {"ids": ("float32", [[1.5]])}, "feed 'ids' is float32 with values beyond int32"),
        ("ids", {"ids": ("int64", [[1 << 40]])}, "feed 'ids' is int64 with values beyond int32"),
        ("ids", {"ids": ("int64", [1])}, "feed 'ids' has shape (1,), expected int32 [-1, -1]"),
        ("ids", {"idz": ("int64", [[1]])}, "the model has no feed 'idz'"),
        ("upper", {"text": ("object", ["a", 7])}, "feed 'text' holds a int; a BYTES tensor takes str and"),
        ("upper", {"text": ("int64", [7])}, "feed 'text' is int64, expected objects of str or bytes"),
    ],
    ids=["float", "too-large", "rank", "name", "no-text", "number"],
)
def test_a_feed_that_does_not_fit_is_named(
    remote: Remote, model: str, feeds: dict[str, tuple[str, Any]], told: str
) -> None:
    answer = remote.service.ask({"op": model, **arrays(**feeds)})
    assert answer["err_no"] == 5000
    assert told in answer["err_msg"]


def test_a_feed_of_text_is_no_array(remote: Remote) -> None:
    answer = remote.service.ask({"op": "ids", "ids": "[[1]]"})
    assert answer["err_no"] == 7000
    assert "preprocess returned str as feed 'ids'; expected an ndarray" in answer["err_msg"]


def test_model_name_and_fetch_list_say_what_is_asked_for() -> None:
    served = models()
    with V2Server(served) as server, asking(server.port, "scale", fetch_list=["rows"]) as service:
        assert outputs(service.predict(arrays(x=("float32", [[1, 1]])))) == {"rows": [[1]]}
    assert [wanted.name for wanted in served["scale"].requests[0].outputs] == ["rows"]


@pytest.mark.parametrize(
    ("model", "op", "told"),
    [
        ("scales", {}, "Request for unknown model: 'scales' is not found; check op.ask.model_name"),
        ("scale", {"fetch_list": ["halved"]}, "fetch_list: the model has no 'halved', only doubled, rows"),
        ("strange", {}, "'x' has datatype 'FP8'"),
    ],
    ids=["unknown-model", "unknown-output", "unknown-datatype"],
)
def test_a_model_that_is_not_there_as_configured_ends_the_start(
    server: V2Server, model: str, op: dict[str, Any], told: str
) -> None:
    with asking(server.port, model, wait=False, **op) as service:
        assert service.exit_code() != 0
        assert told in service.log
        assert "Traceback" not in service.log


def test_a_service_starts_without_its_remote_and_learns_the_model_later() -> None:
    port = free_port()
    with asking(port, "scale", retry=2) as service:
        answer = service.ask(arrays(x=("float32", [[1, 1]])))
        assert answer["err_no"] == 9000
        assert f"[ask] no answer from 127.0.0.1:{port}" in answer["err_msg"]
        assert "that a KServe v2 gRPC service is ready there" in answer["err_msg"]
        with V2Server(models(), port):
            asked = arrays(x=("float32", [[1, 1]]))
            wait_until(lambda: service.ask(asked)["err_no"] == 0, "the remote is found")


def test_a_service_of_another_kind_is_told_from_a_broken_one(server: V2Server) -> None:
    with asking(server.port, "", client_type="pipeline_grpc") as service:
        answer = service.ask({"x": "1"})
        assert answer["err_no"] == 9000
        assert "it is no Pipeline service: check op.ask.client_type" in answer["err_msg"]


def test_another_service_of_ours_is_such_a_service(triton: Callable[[str], ServiceProcess]) -> None:
    with asking(triton("simple").rpc_port, "simple") as service:
        rows = {"INPUT0": ("int64", [[n] * 16 for n in (1, 2)]), "INPUT1": ("int32", [[1] * 16] * 2)}
        answer = outputs(service.predict({"op": "ask", **arrays(**rows)}))
    assert answer == {"OUTPUT0": [[2] * 16, [3] * 16], "OUTPUT1": [[0] * 16, [1] * 16]}
