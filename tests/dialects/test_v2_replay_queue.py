"""Requests recorded from a Triton whose model was busy and its queue full: refused as recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.service_process import APPS, PATIENCE_S, HttpAnswer, ServiceProcess, wait_until
from tests.support.triton_recordings import RECORDINGS, recorded_http

ROWS = {row["id"]: row for row in RECORDINGS if row["id"].startswith("queue.")}
MOST = 2


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The model goes on when this file is there."""
    return tmp_path / "gate"


@pytest.fixture
def service(gate: Path) -> Iterator[ServiceProcess]:
    env = {"MODEL": "identity_queue", "WAIT_FOR": str(gate)}
    config = {"dag": {"max_pending_requests": MOST}}
    with ServiceProcess(APPS / "triton.py", config, name="identity_queue", env=env) as started:
        yield started


def asked(service: ServiceProcess, case: str, timeout_us: int = 0, held: bool = False) -> HttpAnswer:
    document = json.loads(ROWS[case]["request"]["body"]["text"])
    document["parameters"] = {"timeout": timeout_us}
    if held:
        document["inputs"][0]["data"] = [77] * 4
    return service.http(ROWS[case]["request"]["path"], json.dumps(document))


def test_a_busy_model_answers_and_refuses_as_recorded(service: ServiceProcess, gate: Path) -> None:
    with ThreadPoolExecutor(MOST) as pool:
        answers = {"queue.0": asked(service, "queue.0")}
        holding = []
        try:
            for number in range(1, MOST + 1):
                holding.append(pool.submit(asked, service, "queue.0", held=True))
                wait_until(lambda n=number: service.metric("paddlewheel_pending_requests") == n, "it is held")
                if number < MOST:
                    answers["queue.2"] = asked(service, "queue.2", timeout_us=50_000)
            answers |= {case: asked(service, case) for case in ("queue.1", "queue.4")}
        finally:
            gate.touch()
        assert [one.result(PATIENCE_S).status for one in holding] == [200] * MOST
    assert answers.keys() == ROWS.keys()
    for case, answer in answers.items():
        expected = recorded_http(ROWS[case])
        assert answer.status == expected.status
        if answer.status == 200:
            assert answer.json == expected.document
        else:  # ours says more
            assert answer.json["error"].startswith(expected.document["error"])
    refused = [answer for answer in answers.values() if answer.status == 503]
    assert refused
    assert service.metric("nv_inference_request_failure", reason="REJECTED") == len(refused)
