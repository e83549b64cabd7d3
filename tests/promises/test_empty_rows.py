"""Rows without elements: refused alike alone and beside others, through every protocol."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as v2
from tritonclient.utils import InferenceServerException

from client.values import parse_value
from tests.support import models
from tests.support.service_process import APPS, ServiceProcess

FEEDS = ("input_ids", "token_type_ids", "attention_mask")
MODEL = "model"  # of the Op by itself
ROUNDS = 8  # of twelve callers: the cost of every fourth run is recorded

Answer = tuple[int, Any]  # the status, and the logits or the message
Send = Callable[[ServiceProcess, list[int]], Answer]


@pytest.fixture(scope="module")
def service(model_folder: Path) -> Iterator[ServiceProcess]:
    """Batches are cut by costs, and wait long enough to hold the requests of all callers."""
    local = {
        "model_config": str(models.classifier(model_folder)),
        "engine": "auto",
        "device_type": 0,
        "thread_num": 1,
    }
    op = {"batch_size": "auto", "auto_batching_timeout": 100, "local_service_conf": local}
    config = {"dag": {"http_errors": "status"}, "op": {"model": op}}
    with ServiceProcess(APPS / "either_dialect.py", config) as process:
        yield process


def columns(ids: list[int]) -> Mapping[str, list[int]]:
    return dict(zip(FEEDS, (ids, [0] * len(ids), [1] * len(ids)), strict=True))


def v1_http(service: ServiceProcess, ids: list[int]) -> Answer:
    answer = service.http(f"/v1/models/{MODEL}:predict", json.dumps({"instances": [columns(ids)]}))
    if answer.status != 200:
        return answer.status, answer.json["error"]
    (logits,) = answer.json["predictions"]
    return 200, np.ravel(logits["logits"] if isinstance(logits, dict) else logits)


def v2_http(service: ServiceProcess, ids: list[int]) -> Answer:
    inputs = [
        {"name": name, "datatype": "INT64", "shape": [1, len(ids)], "data": data}
        for name, data in columns(ids).items()
    ]
    answer = service.http(f"/v2/models/{MODEL}/infer", json.dumps({"inputs": inputs}))
    if answer.status != 200:
        return answer.status, answer.json["error"]
    return 200, np.array(answer.json["outputs"][0]["data"])


def v2_grpc(service: ServiceProcess, ids: list[int]) -> Answer:
    inputs = [v2.InferInput(name, [1, len(ids)], "INT64") for name in FEEDS]
    for tensor, data in zip(inputs, columns(ids).values(), strict=True):
        tensor.set_data_from_numpy(np.array([data], np.int64))
    with v2.InferenceServerClient(service.rpc_address) as client:
        try:
            return 200, client.infer(MODEL, inputs).as_numpy("logits")[0]
        except InferenceServerException as exc:
            return {"StatusCode.INVALID_ARGUMENT": 400}.get(exc.status(), 500), exc.message()


def key_value_tensors(service: ServiceProcess, ids: list[int]) -> Answer:
    tensors = [
        {"name": name, "elem_type": 0, "shape": [1, len(data)], "int64_data": data}
        for name, data in columns(ids).items()
    ]
    answer = service.http("/test/prediction", json.dumps({"tensors": tensors}))
    if answer.status != 200:
        return answer.status, answer.json["err_msg"]
    return 200, np.ravel(parse_value(answer.json["value"][0]))


PROTOCOLS: Mapping[str, Send] = {
    "KServe v1": v1_http,
    "KServe v2 over HTTP": v2_http,
    "KServe v2 over gRPC": v2_grpc,
    "key/value tensors": key_value_tensors,
}


def test_empty_rows_are_refused_as_alone_and_fail_no_request_beside_them(service: ServiceProcess) -> None:
    lengths = {name: (number + 3, number + 9) for number, name in enumerate(PROTOCOLS)}
    alone = {
        (name, length): PROTOCOLS[name](service, list(range(1, length + 1)))
        for name, both in lengths.items()
        for length in (0, *both)
    }
    for (name, length), (status, content) in alone.items():
        assert status == (200 if length else 400), (name, content)
        assert length or "has shape (1, 0) and so no element" in content, (name, content)
    with ThreadPoolExecutor(len(alone)) as pool:
        for _ in range(ROUNDS):
            answers = {
                key: pool.submit(PROTOCOLS[key[0]], service, list(range(1, key[1] + 1))) for key in alone
            }
            for key, future in answers.items():
                status, content = future.result()
                assert status == alone[key][0], (key, content)
                if status == 200:
                    assert np.allclose(content, alone[key][1], atol=1e-5), key
                else:
                    assert content == alone[key][1]
    assert "A fault of ours" not in service.log
    assert "Traceback" not in service.log
