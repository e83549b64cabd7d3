"""Upgrades of the model of a service script, whose versions are folders."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from tests.support import onnx_models
from tests.support.service_process import APPS, ServiceProcess
from tests.upgrades.test_upgrades import PATIENCE_S, begin, report, wait_for_end

INPUT = {"x": "[[1.0, 2.0, 3.0, 6.0], [2.0, 3.0, 4.0, 5.0]]"}  # the model mixes rows
MEAN, PRODUCT = b"ReduceMean", b"ReduceProd"


@pytest.mark.parametrize("shards", [1, 2])
def test_versions_of_a_script_are_compared_and_take_over(shards: int, tmp_path: Path) -> None:
    model = onnx_models.bare(tmp_path, "mixes_rows")
    versions = tmp_path / "versions"
    versions.mkdir()
    model.rename(versions / "1")
    program = (versions / "1" / "model.onnx").read_bytes()
    assert MEAN in program
    conf = {"model_config": str(versions), "device_type": 0, "engine": "onnxruntime"}
    config = {"shards": shards, "op": {"model": {"concurrency": 1, "local_service_conf": conf}}}
    with ServiceProcess(APPS / "model.py", config) as service:
        expected = service.predict(INPUT)
        ended = threading.Event()
        answers: list[dict[str, str]] = []

        def send() -> None:
            while not ended.is_set():
                answers.append(service.predict(INPUT))

        thread = threading.Thread(target=send)
        thread.start()
        try:
            shutil.copytree(versions / "1", versions / "2")
            (versions / "2" / "model.onnx").write_bytes(program.replace(MEAN, PRODUCT))
            assert begin(service, timeout_s=PATIENCE_S).status == 202
            document = wait_for_end(service)
            assert (document["result"], "changes answers" in document["reason"]) == ("refused", True)
            (versions / "2" / "model.onnx").write_bytes(program)
            canary = {"canary": [50, 100], "step_requests": 5, "latency_limit": 1000}
            assert begin(service, requests=20, timeout_s=PATIENCE_S, **canary).status == 202
            document = wait_for_end(service)
            assert document["result"] == "accepted", document
            steps = [(step["share"], step["requests"]) for step in document["canary"]["steps"]]
            assert steps == [(50, 5), (100, 5)]
        finally:
            ended.set()
            thread.join()
        assert all(answer == expected for answer in answers)
        assert service.http("/v2/models/model").json["versions"] == ["2"]
        shutil.copytree(onnx_models.bare(tmp_path, "classifier"), versions / "3")
        answer = begin(service, "3")
        assert (answer.status, "has no input 'x'" in answer.json.get("error", "")) == (400, True), answer
        assert report(service, "/accepted").status == 200


def test_a_canary_of_an_op_whose_requests_run_once_is_refused(tmp_path: Path) -> None:
    versions = tmp_path / "versions"
    versions.mkdir()
    onnx_models.bare(tmp_path, "mixes_rows").rename(versions / "1")
    conf = {"model_config": str(versions), "device_type": 0, "engine": "onnxruntime"}
    op = {"concurrency": 1, "crash_retry": False, "local_service_conf": conf}
    with ServiceProcess(APPS / "model.py", {"op": {"model": op}}) as service:
        shutil.copytree(versions / "1", versions / "2")
        answer = begin(service, canary=[50])
        assert (answer.status, "crash_retry: false" in answer.json.get("error", "")) == (400, True), answer
