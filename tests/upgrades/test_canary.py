"""Canaries: a growing share of live requests goes to the new version, and no caller notices its faults."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.launch.upgrade_command import render_html
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import ServiceProcess, wait_until
from tests.support.triton_repository import write_model
from tests.upgrades.test_upgrades import (
    PATIENCE_S,
    TENSORS,
    Traffic,
    begin,
    classifies,
    infer,
    report,
    wait_for_end,
)

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "CLASS" data_type: TYPE_INT32 dims: 1 }
ensemble_scheduling { step [
  { model_name: "model" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "CLASS" value: "found" } },
  { model_name: "checks" model_version: -1
    input_map { key: "X" value: "found" } output_map { key: "CLASS" value: "CLASS" } } ] }
"""
ORDERED = TENSORS + "dynamic_batching { preserve_ordering: true }"
CACHED = TENSORS + "response_cache { enable: true }"
FAILS_FROM_99 = "if (x >= 99).any(): raise ValueError('no class')"
ARGUMENTS = ["--model-control-mode=explicit", "--load-model=*", "--cache-config=local,size=1048576"]
ENDLESS = 10**6  # requests of a step


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in ("model", "equal"):
        write_model(folder, name, TENSORS, classifies())
    write_model(folder, "ordered", ORDERED, classifies())
    write_model(folder, "cached", CACHED, classifies())
    write_model(folder, "checks", TENSORS, classifies(FAILS_FROM_99))
    write_model(folder, "both", ENSEMBLE)
    return folder


@pytest.fixture(scope="module")
def service(repository: Path) -> Iterator[RepositoryProcess]:
    with RepositoryProcess(repository, arguments=ARGUMENTS) as process:
        yield process


def begin_canary(service: ServiceProcess, model: str = "model", **settings: Any) -> None:
    settings = {"requests": 5, "timeout_s": PATIENCE_S, "step_requests": ENDLESS, **settings}
    answer = begin(service, "2", model, **settings)
    assert answer.status == 202, answer


def wait_for_share(service: ServiceProcess, share: float, model: str = "model") -> None:
    def has_share() -> bool:
        document = report(service, model=model).json
        assert document["result"] == "running", document
        return bool(document["canary"]["share"] == share)

    wait_until(has_share, f"{share} % of the requests go to the new version", PATIENCE_S)


def wait_for_compared(service: ServiceProcess, requests: int) -> None:
    wait_until(lambda: report(service).json["requests"]["compared"] >= requests, "copies are compared")


def write_faulty(repository: Path, answer: str, flag: Path) -> None:
    """Write version 2 of `model`, which has another answer while the file `flag` exists."""
    code = classifies().replace("x % 7", f"({answer}) if os.path.exists({str(flag)!r}) else x % 7")
    write_model(repository, "model", TENSORS, code, version="2")


def test_the_share_grows_up_to_the_new_version(service: RepositoryProcess, repository: Path) -> None:
    write_model(repository, "equal", TENSORS, classifies("x = x + 7"), version="2")
    traffic = Traffic(service, "equal")
    with traffic.flow():
        begin_canary(service, "equal", canary=[20, 50, 100], step_requests=6, latency_limit=1000)
        document = wait_for_end(service, "equal")
    assert document["result"] == "accepted", document
    steps = [(step["share"], step["requests"]) for step in document["canary"]["steps"]]
    assert steps == [(20, 6), (50, 6), (100, 6)]
    assert (traffic.answers.keys(), traffic.wrong) == ({(200, "1"), (200, "2")}, [])
    assert document["canary"]["share"] == 0
    page = render_html(document)
    for share, requests in steps:
        assert f"<td>{share:g} %</td><td>{requests}</td>" in page


@pytest.mark.parametrize(
    ("answer", "model", "reason"),
    [
        ("1 / 0", "model", "is taken back at 50 %: it failed"),
        ("os._exit(3)", "model", "crashes"),
        ("x * 0 + 99", "both", "is taken back at 50 %: it failed"),
    ],
    ids=["raises", "crashes", "the-step-behind-it-raises"],
)
def test_the_served_version_answers_in_place_of_a_faulty_one(
    service: RepositoryProcess, repository: Path, tmp_path: Path, answer: str, model: str, reason: str
) -> None:
    flag = tmp_path / "fault"
    write_faulty(repository, answer, flag)
    traffic = Traffic(service, model)
    with traffic.flow():
        begin_canary(service, canary=[50], tolerance=0.99, latency_limit=1000)
        wait_for_share(service, 50)
        flag.touch()
        document = wait_for_end(service)
    assert (document["result"], reason in document["reason"]) == ("refused", True), document
    assert ({status for status, _ in traffic.answers}, traffic.wrong) == ({200}, [])
    assert report(service, "/refused").status == 200
    assert infer(service, 1).json["model_version"] == "1"


def test_changed_answers_return_the_share_to_0(
    service: RepositoryProcess, repository: Path, tmp_path: Path
) -> None:
    flag = tmp_path / "fault"
    write_faulty(repository, "x * 0 + 9", flag)
    traffic = Traffic(service, "model")
    with traffic.flow():
        begin_canary(service, canary=[10, 50])
        wait_for_share(service, 10)
        flag.touch()
        document = wait_for_end(service)
    assert (document["result"], "changes answers" in document["reason"]) == ("refused", True), document
    assert {status for status, _ in traffic.answers} == {200}


def test_requests_that_name_a_version_stay_with_it_and_a_cancelled_canary_ends(
    service: RepositoryProcess, repository: Path
) -> None:
    write_model(repository, "model", TENSORS, classifies(), version="2")
    traffic = Traffic(service, "model")
    with traffic.flow():
        begin_canary(service, canary=[100], latency_limit=1000)
        wait_for_share(service, 100)
        wait_until(lambda: infer(service, 1).json["model_version"] == "2", "the new version answers")
        assert infer(service, 1, "model/versions/1").json["model_version"] == "1"
        assert report(service).json["reason"] == "version 2 gets 100 % of the requests"
        assert report(service, "/accepted").status == 403
        assert service.http("/v2/repository/models/model/upgrade", method="DELETE").status == 200
        assert wait_for_end(service)["result"] == "inconclusive"
    assert infer(service, 1).json["model_version"] == "1"
    assert {status for status, _ in traffic.answers} == {200}


def test_a_canary_that_does_not_fit_is_refused(service: RepositoryProcess, repository: Path) -> None:
    for model, config, reason in (
        ("ordered", ORDERED, "preserve_ordering"), ("cached", CACHED, "a response cache"),
    ):  # fmt: skip
        write_model(repository, model, config, classifies(), version="2")
        answer = begin(service, "2", model, canary=[50])
        assert (answer.status, reason in answer.json["error"]) == (400, True), answer
    for shares in ([0], [101], [50, 10], [10, 10], [True], "1,10", {}, [1] * 30):
        answer = begin(service, "2", canary=shares)
        assert (answer.status, "rising shares" in answer.json["error"]) == (400, True), (shares, answer)
    for member in ({"step_requests": 0}, {"step_requests": 1.5}, {"latency_limit": 0.5}, {"error_limit": 1}):
        assert begin(service, "2", canary=[50], **member).status == 400, member


def test_a_stop_of_the_service_runs_waiting_requests_with_the_served_version(tmp_path: Path) -> None:
    folder, flag = tmp_path / "models", tmp_path / "waits"
    folder.mkdir()
    write_model(folder, "model", TENSORS, classifies())
    with RepositoryProcess(folder, arguments=ARGUMENTS) as service, ThreadPoolExecutor(1) as client:
        waits = f"while os.path.exists({str(flag)!r}): time.sleep(0.01)"
        write_model(folder, "model", TENSORS, f"import time{classifies(waits)}", version="2")
        begin_canary(service, canary=[100], requests=2)
        wait_until(lambda: report(service).json["reason"] == "answers are compared", "both versions run")
        for number in (1, 2):  # so few that the service does not know yet how long a request usually takes
            assert infer(service, number).json["model_version"] == "1"
            wait_for_compared(service, number)
        wait_for_share(service, 100)
        flag.touch()
        waiting = client.submit(infer, service, 3)
        wait_until(lambda: report(service).json["canary"]["waiting"] == 1, "the new version has a request")
        service.terminate()
        answer = waiting.result()
        assert (answer.status, answer.json["model_version"]) == (200, "1"), answer
        assert service.exit_code() == 0
