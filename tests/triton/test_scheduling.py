"""When instances run and loads are tried again: the rate limiter, delays of the identity backend, retries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.triton import repository_op
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import wait_until
from tests.support.triton_repository import write_model

X = 'input { name: "X" data_type: TYPE_FP32 dims: 1 }\noutput { name: "Y" data_type: TYPE_FP32 dims: 1 }\n'
LIMITER = 'instance_group {{ count: {} rate_limiter {{ resources {{ name: "R" count: {} }} }} }}\n'
PARAMETER = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'
# Makes the file `begun` beside the file of its parameter, and waits for the latter.
WAITS = """
import json, time
from pathlib import Path
class TritonPythonModel:
    def initialize(self, args):
        self.go = Path(json.loads(args["model_config"])["parameters"]["go"]["string_value"])

    def execute(self, requests):
        self.go.with_name("begun").touch()
        while not self.go.exists():
            time.sleep(0.002)
        x = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", one)]) for one in x]
"""
# Can be loaded at every third try.
FLAKY = """
import json
from pathlib import Path
class TritonPythonModel:
    def initialize(self, args):
        tries = Path(json.loads(args["model_config"])["parameters"]["tries"]["string_value"])
        with tries.open("a") as file:
            file.write("x")
        if len(tries.read_text()) % 3:
            raise ValueError("not yet")

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros(1, "f"))]) for _ in requests]
"""
SLOW_MS = 30


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the model `waits` waits for."""
    return tmp_path_factory.mktemp("files") / "go"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, go: Path) -> Iterator[RepositoryProcess]:
    folder = tmp_path_factory.mktemp("scheduling")
    python = f'backend: "python"\n{X}'
    write_model(folder, "waits", python + LIMITER.format(1, 1) + PARAMETER.format("go", go), WAITS)
    write_model(folder, "quick", f'backend: "identity"\n{X}' + LIMITER.format(1, 1))
    write_model(folder, "greedy", f'backend: "identity"\n{X}' + LIMITER.format(1, 9))
    mixed = LIMITER.format(1, 1).replace('name: "R"', 'name: "R" global: true')
    write_model(folder, "zone", f'backend: "identity"\n{X}' + mixed)
    maps = 'input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }'
    ensemble = f'step {{ model_name: "zone" {maps} }}'
    write_model(folder, "zoned", f'platform: "ensemble"\n{X} ensemble_scheduling {{ {ensemble} }}')
    write_model(folder, "slow", f'backend: "identity"\n{X}' + PARAMETER.format("execute_delay_ms", SLOW_MS))
    write_model(folder, "sloth", f'backend: "identity"\n{X}' + PARAMETER.format("execute_delay_ms", "long"))
    write_model(folder, "flaky", python + PARAMETER.format("tries", go.with_name("tries")), FLAKY)
    arguments = ["--rate-limit=execution_count", "--rate-limit-resource=R:1", "--model-load-retry-count=2"]
    arguments += ["--model-control-mode=explicit", "--load-model=*"]
    with RepositoryProcess(folder, arguments=arguments, wait=False) as process:
        process.wait_for_log("is ready: http_port")
        yield process


def infer(server: RepositoryProcess, model: str) -> Any:
    x = {"name": "X", "shape": [1], "datatype": "FP32", "data": [5]}
    return server.http(f"/v2/models/{model}/infer", json.dumps({"inputs": [x]})).json["outputs"][0]["data"]


def get_reason(server: RepositoryProcess, model: str) -> str:
    rows = {row["name"]: row for row in server.http("/v2/repository/index", b"").json}
    assert rows[model]["state"] == "UNAVAILABLE"
    return str(rows[model]["reason"])


def test_an_instance_runs_while_its_resources_are_free(server: RepositoryProcess, go: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(infer, server, "waits")
        try:
            wait_until(go.with_name("begun").exists, "a request runs")
            second = threads.submit(infer, server, "quick")
            wait_until(
                lambda: server.metric("paddlewheel_op_queue_length", op="quick:1") == 1, "another waits"
            )
            assert not second.done()
        finally:
            go.touch()
        assert first.result() == second.result() == [5.0]


def test_a_model_that_needs_more_than_there_is_is_refused_with_the_resource(
    server: RepositoryProcess,
) -> None:
    assert get_reason(server, "greedy") == (
        'Invalid argument: Resource count for "R" is limited to 1 which will prevent scheduling of one or '
        "more model instances, the minimum required count is 9. Raise --rate-limit-resource=R:9"
    )


def test_a_resource_that_other_models_have_per_device_may_not_be_global(server: RepositoryProcess) -> None:
    reason = 'Resource "R" is present as both global and device-specific resource in the model configuration.'
    assert get_reason(server, "zone") == f"Invalid argument: {reason}"
    assert get_reason(server, "zoned").endswith("not available or ambiguous: zone")
    refusal = server.http("/v2/repository/models/zone/load", b"")
    assert refusal.status == 400 and reason in refusal.json["error"]
    assert infer(server, "quick") == [5.0]


def test_an_identity_model_takes_the_time_of_its_parameter(server: RepositoryProcess) -> None:
    assert infer(server, "slow") == [5.0]
    (stats,) = server.http("/v2/models/slow/stats").json["model_stats"]
    assert stats["inference_stats"]["compute_infer"]["ns"] >= SLOW_MS * 1_000_000
    assert "parameter execute_delay_ms of sloth is 'long': write a number" in get_reason(server, "sloth")


def test_delays_of_the_identity_backend_grow_with_the_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(repository_op.time, "sleep", slept.append)
    texts = {"creation_delay_sec": "4", "execute_delay_ms": "500", "instance_wise_delay_multiplier": "2"}
    parameters = {name: {"string_value": text} for name, text in texts.items()}
    for instance in (0, 3):
        repository_op.Identity({"input": [], "output": [], "parameters": parameters}, instance).run(
            [], [], []
        )
    assert slept == [4, 0.5, 4, 3.0]


def test_a_load_that_fails_is_tried_again(server: RepositoryProcess, go: Path) -> None:
    tries = go.with_name("tries")
    assert infer(server, "flaky") == [0.0]
    assert len(tries.read_text()) == 3
    assert server.http("/v2/repository/models/flaky/unload", b"").status == 200
    assert server.http("/v2/repository/models/flaky/load", b"").status == 200
    assert infer(server, "flaky") == [0.0]
    assert len(tries.read_text()) == 6
