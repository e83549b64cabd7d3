"""/overview.json: the figures, models and recent errors that the page at /docs draws."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import DeadlineExceeded, InvalidInput, Overloaded, ServingError
from pipeline.front.metrics.recent_errors import MAX_CAUSES, MAX_REQUESTS, RecentErrors, merge_causes
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import APPS, ServiceProcess, key_value, wait_until
from tests.support.triton_repository import write_model

IDENTITY = """
backend: "identity"
max_batch_size: 4
input { name: "I" data_type: TYPE_STRING dims: 1 }
output { name: "O" data_type: TYPE_STRING dims: 1 }
"""


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "watched.py") as process:
        yield process


def overview(service: ServiceProcess) -> dict[str, Any]:
    answer = service.http("/overview.json")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    document: dict[str, Any] = answer.json
    return document


def mean_s(op: dict[str, Any]) -> float:
    """Seconds of a request in the Op, without its queue."""
    spent: float = op["preprocess_s"] + op["run_s"] + op["postprocess_s"]
    return spent / op["answered"]


def test_it_has_the_graph_and_the_figures_of_each_op(service: ServiceProcess) -> None:
    before = overview(service)
    assert service.predict({"number": "4"}) == {"number": "8"}
    after = overview(service)
    ops = after["ops"]
    assert ops.keys() == {"parse", "rank", "format"}
    assert max(ops, key=lambda name: mean_s(ops[name])) == "rank"
    for name, op in ops.items():
        assert sum(op["queue"][0]) - sum(before["ops"][name]["queue"][0]) == 1
        assert len(op["queue"][0]) == len(after["bounds"]) + 1
        assert (op["ready"], op["instances"], op["waiting"], op["errors"]) == (1, 1, 0, 0)
        assert op["memory"] > 0
    (model,) = after["models"]
    assert (model["name"], model["state"]) == ("test", "READY")
    inputs = {step["name"]: step["inputs"] for step in model["steps"]}
    assert (inputs["rank"], inputs["format"], model["response"]) == (["parse"], ["parse", "rank"], "format")
    assert (after["ready"], after["pending"]) == (True, 0)
    assert after["left_out"] == {"models": 0, "ops": 0, "outcomes": 0}


def test_an_error_has_its_cause_and_the_ids_of_its_requests_but_no_value_of_them(
    service: ServiceProcess,
) -> None:
    body = {**json.loads(key_value({"number": "-31415"})), "logid": 2718}
    assert service.http("/test/prediction", json.dumps(body)).json["err_no"] != 0
    assert service.http("/test/prediction", key_value({"other": "31415"})).json["err_no"] != 0
    missing, broken = overview(service)["errors"]
    assert (missing["kind"], missing["op"], missing["message"]) == ("MissingKey", "parse", "")
    assert (broken["kind"], broken["model"], broken["op"]) == ("HookFailed", "test", "parse")
    assert broken["user_place"].startswith("ValueError in preprocess, watched.py:")
    assert (broken["http_status"], broken["count"], broken["endpoint"]) == (500, 1, "http")
    (request,) = broken["requests"]
    assert request["client_id"] == "2718"
    service.wait_for_log(f"request {request['number']}: preprocess of Op parse raised")
    assert "31415" not in service.http("/overview.json").body.decode()


def test_queued_requests_are_counted_at_their_op(service: ServiceProcess, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with ThreadPoolExecutor(2) as clients:
        held = clients.submit(service.predict, {"number": "1", "gate": str(gate)})
        wait_until((tmp_path / "gate.waiting").exists, "the slow Op runs")
        queued = clients.submit(service.predict, {"number": "2"})
        wait_until(lambda: overview(service)["ops"]["rank"]["waiting"] == 1, "a request waits at rank")
        assert overview(service)["pending"] == 2
        gate.touch()
        assert (held.result(), queued.result()) == ({"number": "2"}, {"number": "4"})


def test_errors_of_shards_are_there() -> None:
    with ServiceProcess(APPS / "echo.py", {"shards": 2, "op": {"echo": {"batch_size": 4}}}) as service:
        assert service.http("/test/prediction", key_value({"number": "x"})).json["err_no"] != 0
        wait_until(lambda: overview(service)["errors"], "the shard has reported the error")
        (cause,) = overview(service)["errors"]
    assert (cause["kind"], cause["op"], cause["count"]) == ("HookFailed", "echo", 1)


def test_models_of_a_repository_have_their_versions_and_states(tmp_path: Path) -> None:
    write_model(tmp_path, "good", IDENTITY)
    write_model(tmp_path, "misspelt", IDENTITY.replace("max_batch_size", "max_batch_sise"))
    with RepositoryProcess(tmp_path) as repository:
        models = {model["name"]: model for model in overview(repository)["models"]}
    assert (models["good"]["version"], models["good"]["state"]) == ("1", "READY")
    assert (models["misspelt"]["state"], models["misspelt"]["steps"]) == ("UNAVAILABLE", [])
    assert "did you mean max_batch_size?" in models["misspelt"]["reason"]


class TestRecentErrors:
    def record(self, errors: RecentErrors, error: ServingError, number: int = 1, model: str = "m") -> None:
        errors.record_error(error, model=model, endpoint="http", number=number, client_id="")

    def test_requests_of_a_cause_are_counted_and_the_latest_are_kept(self) -> None:
        errors = RecentErrors()
        for number in range(9):
            self.record(errors, InvalidInput(f"value {number}"), number)
        (cause,) = errors.list_causes()
        assert (cause.count, cause.message) == (9, "")
        assert [request.number for request in cause.requests] == list(range(9))[-MAX_REQUESTS:]

    def test_the_oldest_cause_is_dropped_and_a_cause_that_returns_is_the_latest(self) -> None:
        errors = RecentErrors()
        for number in range(MAX_CAUSES):
            self.record(errors, InvalidInput(), model=str(number))
        self.record(errors, InvalidInput(), model="0")
        self.record(errors, InvalidInput(), model="new")
        models = [cause.model for cause in errors.list_causes()]
        assert (len(models), models[-2:]) == (MAX_CAUSES, ["0", "new"])
        assert "1" not in models

    def test_a_message_is_kept_only_where_it_can_hold_no_value_of_a_request(self) -> None:
        engine = ServingError("the engine refused the feeds ids [1, 3]: idx=77 is out of [-8,7]")
        engine.kind = "FeedsRefused"
        errors = RecentErrors()
        for error in (DeadlineExceeded("too late"), Overloaded("full"), engine, ServingError("a secret")):
            self.record(errors, error)
        assert [cause.message for cause in errors.list_causes()] == [
            "too late",
            "full",
            "the engine refused the feeds ids [#, #]: idx=# is out of [-#,#]",
            "",
        ]

    def test_equal_causes_of_several_processes_are_one(self) -> None:
        one, other = RecentErrors(), RecentErrors()
        for errors in (one, other, other):
            self.record(errors, InvalidInput())
        self.record(one, InvalidInput(), model="n")
        causes = merge_causes([one.list_causes(), other.list_causes()])
        assert {(cause.model, cause.count, len(cause.requests)) for cause in causes} == {
            ("m", 3, 3),
            ("n", 1, 1),
        }

    def test_a_clients_id_is_shortened(self) -> None:
        errors = RecentErrors()
        errors.record_error(InvalidInput(), model="m", endpoint="v2-http", number=1, client_id="x" * 1000)
        assert len(errors.list_causes()[0].requests[0].client_id) == 64
