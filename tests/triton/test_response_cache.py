"""The response cache: what is answered from it, what it bypasses, its statistics and its limits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as rpc
import tritonclient.http as http

from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import PATIENCE_S, wait_until
from tests.support.triton_repository import write_model

TENSORS = """
input { name: "X" data_type: TYPE_FP32 dims: -1 }
output [ { name: "N" data_type: TYPE_INT64 dims: 1 }, { name: "Y" data_type: TYPE_FP32 dims: -1 } ]
"""
CACHED = "response_cache { enable: true }\n"
PYTHON = f'backend: "python"\n{TENSORS}'
# Answers how many requests it has run, and the input. Waits for a file of the name in "until".
COUNTS = """
class TritonPythonModel:
    runs = 0

    def execute(self, requests):
        import json, time
        from pathlib import Path
        answers = []
        for request in requests:
            parameters = json.loads(request.parameters())
            if "starts" in parameters:
                Path(parameters["starts"]).touch()
            while "until" in parameters and not Path(parameters["until"]).exists():
                time.sleep(0.002)
            self.runs += 1
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            if len(x) and x[0] < 0:
                answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("below zero")))
                continue
            tensors = [pb_utils.Tensor("N", np.array([self.runs])), pb_utils.Tensor("Y", x)]
            answers.append(pb_utils.InferenceResponse(tensors))
        return answers
"""
ENSEMBLE = f"""
platform: "ensemble"
{TENSORS}
ensemble_scheduling {{ step {{
  model_name: "MODEL" model_version: -1
  input_map {{ key: "X" value: "X" }}
  output_map [ {{ key: "N" value: "N" }}, {{ key: "Y" value: "Y" }} ]
}} }}
"""
CACHE_BYTES = 16384


def write_repository(folder: Path) -> Path:
    write_model(folder, "counted", PYTHON + CACHED, COUNTS)
    write_model(folder, "plain", PYTHON, COUNTS)
    write_model(folder, "twice", PYTHON + CACHED, COUNTS)
    for name, model, cached in (("of_cached", "twice", ""), ("cached_whole", "plain", CACHED)):
        (write_model(folder, name, ENSEMBLE.replace("MODEL", model) + cached) / "1").mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("cached"))


@pytest.fixture(scope="module")
def service(repository: Path) -> Iterator[RepositoryProcess]:
    flags = [f"--cache-config=local,size={CACHE_BYTES}", "--model-control-mode=explicit", "--load-model=*"]
    with RepositoryProcess(repository, arguments=flags) as service:
        yield service


def infer(service: RepositoryProcess, model: str, *values: float, **options: Any) -> Any:
    """The answer over HTTP. options: of `infer`."""
    x = http.InferInput("X", [len(values)], "FP32")
    x.set_data_from_numpy(np.array(values, np.float32))
    with http.InferenceServerClient(f"127.0.0.1:{service.http_port}", network_timeout=PATIENCE_S) as client:
        return client.infer(model, [x], **options)


def infer_rpc(service: RepositoryProcess, model: str, *values: float, **options: Any) -> Any:
    x = rpc.InferInput("X", [len(values)], "FP32")
    x.set_data_from_numpy(np.array(values, np.float32))
    with rpc.InferenceServerClient(f"127.0.0.1:{service.rpc_port}") as client:
        return client.infer(model, [x], client_timeout=PATIENCE_S, **options)


def count_runs(answer: Any) -> int:
    """How many requests the model had run with the one that made the answer."""
    return int(answer.as_numpy("N")[0])


def read_statistics(service: RepositoryProcess, model: str) -> dict[str, Any]:
    (statistics,) = service.http(f"/v2/models/{model}/stats").json["model_stats"]
    return dict(statistics)


def test_an_identical_request_gets_the_same_answer_with_its_own_id(service: RepositoryProcess) -> None:
    for send in (infer, infer_rpc):
        first = send(service, "counted", 1, 2, request_id="a")
        again = send(service, "counted", 1, 2, request_id="b-é")
        unnamed = send(service, "counted", 1, 2)
        assert count_runs(first) == count_runs(again) == count_runs(unnamed)
        assert again.as_numpy("Y").tolist() == [1, 2]
        ids = [getattr(a.get_response(), "id", None) for a in (first, again, unnamed)]
        if send is infer:
            ids = [answer.get_response().get("id", "") for answer in (first, again, unnamed)]
        assert ids == ["a", "b-é", ""]


def test_other_inputs_outputs_or_parameters_are_other_requests(service: RepositoryProcess) -> None:
    answers = [
        infer(service, "counted", 3, 4),
        infer(service, "counted", 3, 5),
        infer(service, "counted", 3),
        infer(service, "counted", 3, 4, parameters={"color": "red"}),
        infer(service, "counted", 3, 4, outputs=[http.InferRequestedOutput("N")]),
    ]
    assert len({count_runs(answer) for answer in answers}) == len(answers)
    assert answers[-1].as_numpy("Y") is None


def test_a_hit_needs_no_worker_and_identical_requests_in_flight_run_once(
    service: RepositoryProcess, tmp_path: Path
) -> None:
    known = count_runs(infer(service, "counted", 6))
    starts, until = tmp_path / "starts", tmp_path / "until"
    parameters = {"starts": str(starts), "until": str(until)}
    with ThreadPoolExecutor(5) as threads:
        blocked = threads.submit(infer_rpc, service, "counted", 7, parameters=parameters)
        wait_until(starts.exists, "the model does not run")
        assert count_runs(infer(service, "counted", 6)) == known  # while the only instance is busy
        same = [threads.submit(infer_rpc, service, "counted", 8) for _ in range(4)]
        pending = "paddlewheel_pending_requests"
        wait_until(lambda: service.metric(pending) == 1 + len(same), "all are in flight")
        until.touch()
        runs = {count_runs(future.result()) for future in same}
        assert runs == {count_runs(blocked.result()) + 1}


def metrics(service: RepositoryProcess) -> str:
    return service.http("/metrics").body.decode()


def test_errors_are_not_cached(service: RepositoryProcess) -> None:
    before = read_statistics(service, "counted")["inference_stats"]
    for _ in range(2):
        with pytest.raises(http.InferenceServerException, match="below zero"):
            infer(service, "counted", -1)
    after = read_statistics(service, "counted")["inference_stats"]
    assert after["cache_miss"]["count"] == before["cache_miss"]["count"] + 2
    assert after["cache_hit"] == before["cache_hit"]


def test_statistics_and_metrics_tell_hits_and_misses(service: RepositoryProcess) -> None:
    before = read_statistics(service, "counted")
    infer(service, "counted", 21)
    infer(service, "counted", 21)
    after = read_statistics(service, "counted")
    old, new = before["inference_stats"], after["inference_stats"]
    grown = {name: new[name]["count"] - old[name]["count"] for name in new}
    assert grown["cache_hit"] == grown["cache_miss"] == grown["compute_infer"] == 1
    assert grown["success"] == grown["queue"] == 2
    assert new["cache_hit"]["ns"] > old["cache_hit"]["ns"]
    assert after["inference_count"] == before["inference_count"] + 1
    text = metrics(service)
    labels = '{model="counted",version="1"}'
    assert f"nv_cache_num_hits_per_model{labels} {new['cache_hit']['count']}\n" in text
    assert f"nv_cache_num_misses_per_model{labels} {new['cache_miss']['count']}\n" in text
    for name in ("nv_cache_hit_duration_per_model", "nv_cache_miss_duration_per_model"):
        assert f"{name}{labels} " in text
    assert "\nnv_cache_num_entries " in text


def test_an_ensemble_is_answered_from_its_own_cache_or_from_that_of_its_step(
    service: RepositoryProcess,
) -> None:
    for model in ("of_cached", "cached_whole"):
        runs = [count_runs(infer(service, model, 1, 2)) for _ in range(3)]
        assert len(set(runs)) == 1
        assert count_runs(infer(service, model, 2, 1)) == runs[0] + 1
    whole = read_statistics(service, "cached_whole")
    assert whole["inference_stats"]["cache_hit"]["count"] == 2
    assert (whole["inference_stats"]["success"]["count"], whole["inference_count"]) == (4, 2)
    assert read_statistics(service, "twice")["inference_stats"]["cache_hit"]["count"] == 2


def test_streams_and_models_without_the_setting_bypass_the_cache(service: RepositoryProcess) -> None:
    runs = [count_runs(infer(service, "plain", 1)) for _ in range(2)]
    assert runs[1] == runs[0] + 1
    before = read_statistics(service, "counted")["inference_stats"]
    answers: SimpleQueue[Any] = SimpleQueue()
    x = rpc.InferInput("X", [1], "FP32")
    x.set_data_from_numpy(np.array([31], np.float32))
    with rpc.InferenceServerClient(f"127.0.0.1:{service.rpc_port}") as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for _ in range(2):
            client.async_stream_infer("counted", [x])
        got = [answers.get(timeout=PATIENCE_S) for _ in range(2)]
    assert [error for _, error in got] == [None, None]
    assert count_runs(got[1][0]) == count_runs(got[0][0]) + 1
    after = read_statistics(service, "counted")["inference_stats"]
    assert (after["cache_hit"], after["cache_miss"]) == (before["cache_hit"], before["cache_miss"])


def test_the_least_recently_used_is_evicted_and_a_larger_answer_is_not_stored(
    service: RepositoryProcess,
) -> None:
    first = count_runs(infer(service, "counted", 41))
    large = [count_runs(infer(service, "counted", *range(CACHE_BYTES // 4))) for _ in range(2)]
    assert large[1] == large[0] + 1
    assert count_runs(infer(service, "counted", 41)) == first  # nothing was evicted for them
    service.wait_for_log("is larger than the response cache (16384 bytes)")
    for value in range(CACHE_BYTES // 512):
        infer(service, "counted", 100 + value)
    assert count_runs(infer(service, "counted", 41)) > first
    used = next(line for line in metrics(service).splitlines() if line.startswith("nv_cache_util "))
    assert 0.5 < float(used.split()[1]) <= 1


def test_a_load_of_a_changed_model_begins_anew(service: RepositoryProcess, repository: Path) -> None:
    assert count_runs(infer(service, "counted", 51)) > 1
    write_model(repository, "counted", None, f"{COUNTS}        # changed\n")
    assert service.http("/v2/repository/models/counted/load", "{}").status == 200
    assert count_runs(infer(service, "counted", 51)) == 1
    assert count_runs(infer(service, "counted", 51)) == 1


def test_many_clients_get_the_answers_to_their_own_requests(service: RepositoryProcess) -> None:
    wrong: list[tuple[float, float]] = []

    def send(seed: int) -> None:
        client = http.InferenceServerClient(f"127.0.0.1:{service.http_port}")
        for number in np.random.default_rng(seed).integers(0, 40, 100):
            x = http.InferInput("X", [1], "FP32")
            x.set_data_from_numpy(np.array([number], np.float32))
            (y,) = client.infer("counted", [x], request_id=f"{number}").as_numpy("Y")
            if y != number:
                wrong.append((y, number))
        client.close()

    threads = [threading.Thread(target=send, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not wrong
