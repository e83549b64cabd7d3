"""Requests of about 70 MB recorded from Triton, sent to services whose `limits` have room for them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.service_process import APPS, ServiceProcess
from tests.support.triton_recordings import RECORDINGS, comparable, recorded_http

ROWS = {row["id"]: row for row in RECORDINGS}


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[ServiceProcess]:
    config = {"limits": {"body_bytes": 80 << 20}}
    env = {"MODEL": request.param}
    with ServiceProcess(APPS / "triton.py", config, name=request.param, env=env) as started:
        yield started


@pytest.mark.parametrize("service", ["identity_fp32"], indirect=True)
def test_a_tensor_of_68_mb_comes_back(service: ServiceProcess) -> None:
    request, response = ROWS["big.binary_68MB"]["request"], ROWS["big.binary_68MB"]["response"]
    length = int(request["headers"]["Inference-Header-Content-Length"])
    head = request["body"]["prefix"].encode()[:length]
    tensor = bytes(range(256)) * ((request["body"]["elided_bytes"] - length) // 256)
    answer = service.http(request["path"], head + tensor, headers=request["headers"])
    assert answer.status == 200
    told, came = response["body"]["prefix"], int(answer.headers["inference-header-content-length"])
    assert json.loads(answer.body[:came]) == json.loads(told[: told.index("\0")])
    assert answer.body[came:] == tensor


@pytest.mark.parametrize("service", ["simple"], indirect=True)
def test_a_document_of_68_mb_without_inputs_is_refused_as_recorded(service: ServiceProcess) -> None:
    row = ROWS["err.too_large_body"]
    size, head, tail = row["request"]["body"]["elided_bytes"], b'{"inputs":[', b"]}"
    assert row["request"]["body"]["prefix"].encode().startswith(head)
    body = head + b" " * (size - len(head) - len(tail)) + tail
    answer = service.http(row["request"]["path"], body)
    expected = recorded_http(row)
    assert comparable(expected._replace(status=answer.status, document=answer.json), expected) == comparable(
        expected
    )
