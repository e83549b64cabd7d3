"""Upgrades of models of a repository, gated by the answers to copies of live requests."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import paddlewheel
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import HttpAnswer, ServiceProcess, wait_until
from tests.support.triton_repository import write_model

TENSORS = """
backend: "python"
max_batch_size: 4
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "CLASS" data_type: TYPE_INT32 dims: 1 }
"""
CLASSIFIES = """
import os, signal
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            CHANGE
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("CLASS", x % 7)]))
        return answers
"""
MODELS = ("model", "taken_over", "other")
PATIENCE_S = 120


def classifies(change: str = "pass") -> str:
    return CLASSIFIES.replace("CHANGE", change)


CHANGES = "x = x + x % 2"  # half of the classes
CRASHES = "os._exit(3)"
HANGS = "signal.pause()"
LEAKS = "self.kept = [*getattr(self, 'kept', []), np.ones(8 << 20)]"  # 64 MB a request
RAISES = "raise ValueError('a fault')"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in MODELS:
        write_model(folder, name, TENSORS, classifies())
    return folder


@pytest.fixture(scope="module")
def service(repository: Path) -> Iterator[RepositoryProcess]:
    arguments = ["--model-control-mode=explicit", "--load-model=*"]
    with RepositoryProcess(repository, arguments=arguments) as process:
        yield process


class Traffic:
    """Requests of a client, one after the other, until the end of the `with` block."""

    def __init__(self, service: ServiceProcess, model: str) -> None:
        self.answers: Counter[tuple[int, str]] = Counter()  # by status and version
        self.wrong: list[HttpAnswer] = []
        self._service = service
        self._model = model
        self._ended = threading.Event()

    def send(self) -> None:
        for number in itertools.count():
            if self._ended.is_set():
                return
            answer = infer(self._service, number % 100, self._model)
            self.answers[answer.status, answer.json.get("model_version", "")] += 1
            if answer.status == 200 and answer.json["outputs"][0]["data"] != [number % 100 % 7]:
                self.wrong.append(answer)

    @contextmanager
    def flow(self) -> Iterator[None]:
        thread = threading.Thread(target=self.send)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()


def infer(service: ServiceProcess, number: int, model: str = "model") -> HttpAnswer:
    tensor = {"name": "X", "shape": [1, 1], "datatype": "INT32", "data": [number]}
    return service.http(f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}))


def begin(service: ServiceProcess, version: Any = "2", model: str = "model", **settings: Any) -> HttpAnswer:
    body = json.dumps({"version": version, "share_cpu": True, **settings})
    return service.http(f"/v2/repository/models/{model}/upgrade", body)


def report(service: ServiceProcess, gate: str = "", model: str = "model") -> HttpAnswer:
    return service.http(f"/v2/repository/models/{model}/upgrade{gate}")


def wait_for_end(service: ServiceProcess, model: str = "model") -> dict[str, Any]:
    def has_ended() -> bool:
        return bool(report(service, model=model).json["result"] != "running")

    wait_until(has_ended, "the upgrade ends", PATIENCE_S, lambda: str(report(service, model=model).json))
    document: dict[str, Any] = report(service, model=model).json
    return document


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (CHANGES, "changes answers"),
        (RAISES, "changes answers"),
        (CRASHES, "crashes"),
        (HANGS, "hangs"),
        (LEAKS, "leaks memory"),
    ],
    ids=["changes", "raises", "crashes", "hangs", "leaks"],
)
def test_a_worse_version_is_refused_and_no_caller_notices(
    service: RepositoryProcess, repository: Path, change: str, reason: str
) -> None:
    write_model(repository, "model", TENSORS, classifies(change), version="2")
    traffic = Traffic(service, "model")
    with traffic.flow():
        answer = begin(service, timeout_s=1 if change == HANGS else PATIENCE_S)
        assert (answer.status, answer.json["result"]) == (202, "running"), answer
        document = wait_for_end(service)
    assert (document["result"], reason in document["reason"]) == ("refused", True), document
    assert (list(traffic.answers), traffic.wrong) == ([(200, "1")], [])
    assert (report(service, "/refused").status, report(service, "/accepted").status) == (200, 403)
    if change == CHANGES:
        of_model = {"model": "model", "version": "2"}
        states = {
            state: service.metric("paddlewheel_upgrade_state", **of_model, state=state)
            for state in ("running", "refused")
        }
        assert states == {"running": 0, "refused": 1}
        figures = [
            service.metric(f"paddlewheel_upgrade_{name}", **of_model)
            for name in ("compared_requests", "changed_answers", "share")
        ]
        assert figures == [document["requests"]["compared"], document["changed"], 0]
        assert document["kinds"] == {"classes": document["changed"]}
        assert document["examples"][0]["output"] == "CLASS"
        assert document["noise"] == 0
    wait_until(lambda: len(service.worker_pids()) == len(MODELS), "the workers of the comparison end")


def test_upgrades_that_do_not_fit_are_refused_before_anything_is_loaded(
    service: RepositoryProcess, repository: Path
) -> None:
    pids = service.worker_pids()
    unfit = {
        TENSORS.replace("INT32", "INT64"): "declares input 'X' as INT64",
        TENSORS.replace("max_batch_size: 4", "max_batch_size: 2"): "takes 2 rows at most",
        TENSORS.replace('"CLASS"', '"NAME"'): "has no output 'CLASS'",
        TENSORS + 'input { name: "Y" data_type: TYPE_INT32 dims: 1 }': "needs input 'Y'",
        TENSORS + "model_transaction_policy { decoupled: true }": "any number of responses",
    }
    for config, message in unfit.items():
        write_model(repository, "model", config, classifies(), version="2")
        answer = begin(service)
        assert (answer.status, message in answer.json["error"]) == (400, True), answer
    write_model(repository, "model", TENSORS, classifies(), version="2")
    assert "would not serve version 3, but 2" in begin(service, "3").json["error"]
    assert "is served already" in begin(service, "1", "other").json["error"]
    assert begin(service, "2", "absent").status == 404
    assert report(service, model="other").status == 404
    members = [{"version": None}, {"version": "x"}, {"version": 0}, {"version": True}, {"versoin": "2"}]
    numbers = [
        {"tolerance": 2},
        {"requests": 0},
        {"requests": 1.5},
        {"minutes": "1"},
        {"timeout_s": True},
        {"share_cpu": 1},
    ]
    for member in members + numbers:
        answer = begin(service, **{"version": "2", **member})
        assert answer.status == 400, (member, answer)
    assert service.http("/v2/repository/models/model/upgrade", "[]").status == 400
    assert service.worker_pids() == pids


def test_an_upgrade_without_traffic_waits_and_can_be_cancelled(
    service: RepositoryProcess, repository: Path
) -> None:
    write_model(repository, "model", TENSORS, classifies(), version="2")
    assert begin(service).status == 202
    assert "an upgrade of model 'model' runs" in begin(service, "1", "other").json["error"]
    wait_until(lambda: report(service).json["reason"] == "answers are compared", "both versions run")
    assert report(service, "/accepted").status == 403
    assert service.http("/v2/repository/models/model/upgrade", method="DELETE").status == 200
    document = wait_for_end(service)
    assert (document["result"], document["reason"]) == ("inconclusive", "it was cancelled")
    wait_until(lambda: len(service.worker_pids()) == len(MODELS), "the workers of the comparison end")


def test_an_upgrade_of_few_minutes_needs_enough_requests(
    service: RepositoryProcess, repository: Path
) -> None:
    write_model(repository, "model", TENSORS, classifies(), version="2")
    assert begin(service, minutes=0.001).status == 202
    document = wait_for_end(service)
    assert (document["result"], "0 requests were compared" in document["reason"]) == ("inconclusive", True)


def test_the_command_lets_an_equal_version_take_over_without_a_lost_request(
    service: RepositoryProcess, repository: Path, tmp_path: Path
) -> None:
    write_model(repository, "taken_over", TENSORS, classifies("x = x + 7"), version="2")
    url = f"http://localhost:{service.http_port}"
    traffic = Traffic(service, "taken_over")
    options = [
        "--url",
        url,
        "--requests",
        "20",
        "--timeout",
        str(PATIENCE_S),
        "--report",
        "report",
        "--share-cpu",
    ]
    with traffic.flow():
        done = paddlewheel("upgrade", "taken_over", "2", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "accepted: 0 of 20 answers differ" in done.stdout
    assert traffic.answers.keys() <= {(200, "1"), (200, "2")}
    assert not traffic.wrong
    assert infer(service, 1, "taken_over").json["model_version"] == "2"
    assert report(service, "/accepted", "taken_over").status == 200
    document = json.loads((tmp_path / "report.json").read_text())
    assert (document["requests"]["compared"], document["changed"]) == (20, 0)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "from version 1 to version 2" in page and "<script" not in page


def test_the_command_reports_what_is_wrong(service: RepositoryProcess) -> None:
    url = f"http://localhost:{service.http_port}"
    done = paddlewheel("upgrade", "absent", "2", "--url", url)
    assert (done.returncode, "model 'absent' is not loaded" in done.stderr) == (2, True), done.stderr
    assert paddlewheel("upgrade", "model", "2", "--url", "localhost").returncode == 2
