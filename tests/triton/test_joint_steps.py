"""Ensembles with `paddlewheel.ensemble_workers`: one process runs all steps; deaths, errors and counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import HttpAnswer, wait_until
from tests.support.triton_repository import write_model

TENSORS = """
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_INT64 dims: 1 }
output [ { name: "Y" data_type: TYPE_INT64 dims: 1 }, { name: "PID" data_type: TYPE_INT64 dims: 1 } ]
dynamic_batching { SETTINGS }
"""
# Writes to its input, as a model may that is alone with it.
WORKS = """
import os
import signal


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request.inputs()[0].as_numpy()) for request in requests]

    def answer(self, rows):
        if (rows == KILLS).any():
            os.kill(os.getpid(), signal.SIGKILL)
        if (rows == REFUSED).any():
            error = pb_utils.TritonError("no 21", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        rows += 1
        tensors = [pb_utils.Tensor("Y", rows), pb_utils.Tensor("PID", np.full_like(rows, os.getpid()))]
        return pb_utils.InferenceResponse(tensors)
"""
SENDS = """
import os
import threading


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            arguments = request.get_response_sender(), request.inputs()[0].as_numpy()
            threading.Thread(target=self.send, args=arguments).start()

    def send(self, sender, rows):
        tensors = [pb_utils.Tensor("Y", rows + 1), pb_utils.Tensor("PID", np.full_like(rows, os.getpid()))]
        sender.send(pb_utils.InferenceResponse(tensors), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input {{ name: "X" data_type: TYPE_INT64 dims: 1 }}
output [ {{ name: "FIRST" data_type: TYPE_INT64 dims: 1 }}, {{ name: "Y" data_type: TYPE_INT64 dims: 1 }},
         {{ name: "P1" data_type: TYPE_INT64 dims: 1 }}, {{ name: "P2" data_type: TYPE_INT64 dims: 1 }} ]
ensemble_scheduling {{ step [
  {{ model_name: "works" model_version: -1 input_map {{ key: "X" value: "X" }}
     output_map [ {{ key: "Y" value: "FIRST" }}, {{ key: "PID" value: "P1" }} ] }},
  {{ model_name: "{second}" model_version: -1 input_map {{ key: "X" value: "FIRST" }}
     output_map [ {{ key: "Y" value: "Y" }}, {{ key: "PID" value: "P2" }} ] }} ] }}
parameters {{ key: "paddlewheel.ensemble_workers" value {{ string_value: "{workers}" }} }}
"""
KILLS, REFUSED = 13, 21  # values of an input of the second step


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    folder = tmp_path_factory.mktemp("joint")
    plain, works = TENSORS.replace("SETTINGS", ""), f"KILLS, REFUSED = 0, 0\n{WORKS}"
    write_model(folder, "works", plain, works)
    write_model(folder, "ends", plain, works.replace("0, 0", f"{KILLS}, {REFUSED}"))
    write_model(folder, "sends", plain, SENDS)
    write_model(folder, "waits", TENSORS.replace("SETTINGS", "max_queue_delay_microseconds: 100"), works)
    for name, second, workers in (
        ("joint", "ends", "1"),
        ("sent", "sends", "1"),
        ("apart", "waits", "1"),
        ("wrong", "ends", "two"),
    ):
        write_model(folder, name, ENSEMBLE.format(second=second, workers=workers))
    with RepositoryProcess(folder, arguments=["--strict-readiness=false"]) as process:
        yield process


def ask(service: RepositoryProcess, model: str, *rows: int) -> HttpAnswer:
    tensor = {"name": "X", "shape": [len(rows), 1], "datatype": "INT64", "data": rows}
    return service.http(f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}))


def outputs(answer: HttpAnswer) -> dict[str, list[int]]:
    assert answer.status == 200, answer
    return {tensor["name"]: tensor["data"] for tensor in answer.json["outputs"]}


def statistics(service: RepositoryProcess, model: str) -> dict[str, Any]:
    (stats,) = service.http(f"/v2/models/{model}/stats").json["model_stats"]
    counts = {name: stats["inference_stats"][name]["count"] for name in ("success", "fail", "queue")}
    return {**counts, "rows": stats["inference_count"], "runs": stats["execution_count"]}


def is_joint(service: RepositoryProcess) -> bool:
    answer = outputs(ask(service, "joint", 1))
    return answer["P1"] == answer["P2"]


def test_one_process_runs_all_steps_and_other_processes_the_single_models(service: RepositoryProcess) -> None:
    rows = outputs(ask(service, "joint", 1, 5))
    assert (rows["FIRST"], rows["Y"]) == ([2, 6], [3, 7])
    assert len({*rows["P1"], *rows["P2"]}) == 1
    assert set(outputs(ask(service, "works", 1))["PID"]).isdisjoint(rows["P1"])


def test_each_model_counts_its_runs_and_a_failed_step_is_named(service: RepositoryProcess) -> None:
    before = {model: statistics(service, model) for model in ("works", "ends", "joint")}
    assert is_joint(service)
    answer = ask(service, "joint", REFUSED - 1)
    assert (answer.status, answer.json["error"]) == (
        400,
        "in ensemble 'joint', step 2 ('ends' version 1): no 21",
    )
    grown = {
        model: {name: count - stats[name] for name, count in statistics(service, model).items()}
        for model, stats in before.items()
    }
    both, first = {"success": 2, "fail": 0, "queue": 2, "rows": 2, "runs": 2}, {"success": 1, "fail": 1}
    assert grown["works"] == both
    assert grown["ends"] == {**both, **first, "rows": 1, "runs": 1}
    assert grown["joint"] == {**grown["ends"], "queue": 1}
    failures = {"model": "joint", "step_model": "ends"}
    assert service.metric("paddlewheel_ensemble_step_failures_total", **failures) == 1


def test_a_request_that_kills_the_worker_is_blamed_and_the_steps_serve_others(
    service: RepositoryProcess,
) -> None:
    answer = ask(service, "joint", KILLS - 1)
    assert (answer.status, "died under this request" in answer.json["error"]) == (500, True), answer
    assert outputs(ask(service, "joint", 1))["Y"] == [3]
    wait_until(lambda: is_joint(service), "a new worker runs all steps")


def test_a_response_sender_answers_once_from_another_thread(service: RepositoryProcess) -> None:
    rows = outputs(ask(service, "sent", 1))
    assert (rows["Y"], rows["P1"]) == ([3], rows["P2"])


def test_steps_with_a_queue_delay_run_apart_and_a_wrong_number_is_refused(service: RepositoryProcess) -> None:
    rows = outputs(ask(service, "apart", 1))
    assert rows["P1"] != rows["P2"]
    name = "paddlewheel.ensemble_workers"
    service.wait_for_log(f"Ensemble apart: {name} has no effect, for dynamic_batching of model waits")
    index = {model["name"]: model for model in service.http("/v2/repository/index", b"").json}
    assert f"parameter {name} is 'two': write a number from 0 to" in index["wrong"]["reason"]
