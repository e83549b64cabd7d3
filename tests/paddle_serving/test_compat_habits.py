"""What apps of Paddle Serving rely on without saying so, through a running service."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from client.protos.pipeline_service_pb2 import Request
from tests.support import models
from tests.support.free_ports import free_port
from tests.support.service_process import APPS, PATIENCE_S, ROOT, ServiceProcess

ENV = {"PYTHONPATH": f"{ROOT}:{ROOT / 'compat'}"}
CLIENTS = 8


def habits(service: str, **op: Any) -> ServiceProcess:
    config = {"dag": {"is_thread_op": False}, "op": op}
    return ServiceProcess(APPS / "habits.py", config, arguments=[service], env=ENV)


def local(model: Path) -> dict[str, Any]:
    conf = {"client_type": "local_predictor", "model_config": str(model), "device_type": 0, "thread_num": 1}
    return {"local_service_conf": conf}


@pytest.mark.parametrize("with_model", [False, True])
def test_what_an_op_keeps_beside_self_is_the_requests_own_as_long_as_nothing_is_batched(
    with_model: bool, model_folder: Path, tmp_path: Path
) -> None:
    op = local(models.images(model_folder)) if with_model else {}
    gate = tmp_path / "gate"
    with habits("kept", kept=op) as service:
        requests = [{"number": str(number)} for number in range(1, CLIENTS + 1)]
        held = {"number": "0", "gate": str(gate)}
        answers = service.ask_together(requests, held, gate)
    for number, answer in enumerate(answers, 1):
        assert answer["err_no"] == 0, answer
        output = dict(zip(answer["key"], answer["value"], strict=True))
        kept = {"boxes": f"[{number}]", "texts": f"['{number}']", "array": f"{{{number}}}"}
        assert {name: output[name] for name in kept} == kept
        if with_model:
            assert float(output["sum"]) == sum((number * 2 + channel) * 4 for channel in range(3))


def test_a_postprocess_of_0_6_is_given_the_log_id_that_it_names() -> None:
    with habits("kept") as service:
        answer = service.rpc(Request(name="test", key=["number"], value=["1"], logid=4711))
    assert dict(zip(answer.key, answer.value, strict=True))["log_id"] == "4711"


def test_all_ops_know_a_request_by_one_number() -> None:
    with habits("numbers") as service, ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(lambda _: service.predict({"x": "1"}), range(4 * CLIENTS)))
    for answer in answers:
        assert list(answer) == ["n_first", "n_left", "n_right", "n_last"]
        assert len(set(answer.values())) == 1
    assert len({answer["n_last"] for answer in answers}) == len(answers)


def test_an_own_process_and_an_own_answer_in_the_words_of_the_defaults(model_folder: Path) -> None:
    options = {"batch_size": 2, "timeout": 2500, "retry": 3, "auto_batching_timeout": 1}
    with habits("checking", checking={**local(models.images(model_folder)), **options}) as service:
        output = service.predict({"number": "1"})
        assert (list(output), float(output["sum"])) == (["sum", "told"], 36.0)
        assert json.loads(output["told"]) == {
            "line": "checking is ready",
            "feeds": ["image"],
            "on": ["local_predictor", 0, 1, 1],
            "model": "images",
            "mine": False,
            "arguments": [2, 2.5, 3, None, "serving_server_conf.prototxt", 0.001],
            "script": [None, None, 1, None],
        }
        unknown = service.ask({"number": "none"})
        assert (unknown["err_no"], unknown["key"], unknown["value"]) == (0, ["type"], ["unknown type"])
        wrong = service.ask({"number": "one"})
        assert wrong["err_no"] == 10000 and "invalid literal" in wrong["err_msg"]


def test_paddle_servings_counters_are_at_the_port_of_its_configuration(model_folder: Path) -> None:
    dag = {"enable_prometheus": True, "prometheus_port": free_port()}
    config = {"dag": dag, "op": {"checking": local(models.images(model_folder))}}
    with ServiceProcess(APPS / "habits.py", config, arguments=["checking"], env=ENV) as service:
        assert service.predict({"number": "1"})
        assert service.ask({"number": "one"})["err_no"] == 10000
        for port in (dag["prometheus_port"], service.http_port):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
                lines = answer.read().decode().splitlines()
            counters = dict(line.split() for line in lines if line.startswith("pd_"))
            assert counters["pd_query_request_success_total"] == "1.0"
            assert counters["pd_query_request_failure_total"] == "1.0"
            assert counters["pd_inference_count_total"] == "1.0"
            assert float(counters["pd_query_request_duration_us_total"]) > 0
            assert float(counters["pd_inference_duration_us_total"]) > 0
