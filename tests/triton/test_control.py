"""Models of a repository that are loaded and unloaded while others are served."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as v2_grpc
from tritonclient.utils import InferenceServerException

from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import HttpAnswer, wait_until
from tests.support.triton_repository import write_model

TENSORS = """
backend: "python"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_FP32 dims: 2 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 2 }
"""
TIMES = """
class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(r, "INPUT0").as_numpy() * FACTOR for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in arrays]
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "A" data_type: TYPE_FP32 dims: 2 }
output { name: "B" data_type: TYPE_FP32 dims: 2 }
ensemble_scheduling { step { model_name: "changing" model_version: -1
  input_map { key: "INPUT0" value: "A" } output_map { key: "OUTPUT0" value: "B" } } }
"""


STEADY = ("steady", "steady_b", "steady_c")


def times(factor: int) -> str:
    return TIMES.replace("FACTOR", str(factor))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "changing", TENSORS, times(2))
    for name in STEADY:
        write_model(folder, name, TENSORS, times(10))
    write_model(folder, "ensemble", ENSEMBLE)
    write_model(folder, "over_policy", ENSEMBLE.replace("changing", "policy"))
    write_model(folder, "policy", f"{TENSORS}version_policy {{ latest {{ num_versions: 2 }} }}", times(1))
    for version in (2, 3):
        write_model(folder, "policy", None, times(version), version=str(version))
    return folder


@pytest.fixture(scope="module")
def service(repository: Path) -> Iterator[RepositoryProcess]:
    arguments = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in STEADY)]
    with RepositoryProcess(repository, arguments=arguments) as process:
        yield process


def order(service: RepositoryProcess, name: str, what: str, **parameters: Any) -> HttpAnswer:
    body = json.dumps({"parameters": parameters}) if parameters else b""
    return service.http(f"/v2/repository/models/{name}/{what}", body)


def ask(service: RepositoryProcess, name: str, version: str = "", tensor: str = "INPUT0") -> HttpAnswer:
    given = {"name": tensor, "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
    path = f"/v2/models/{name}{f'/versions/{version}' if version else ''}/infer"
    return service.http(path, json.dumps({"inputs": [given]}))


def data(answer: HttpAnswer) -> list[float]:
    assert answer.status == 200, answer
    numbers: list[float] = answer.json["outputs"][0]["data"]
    return numbers


def index(service: RepositoryProcess) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    for row in service.http("/v2/repository/index", b"").json:
        rows.setdefault(row["name"], []).append(f"{row.get('version', '')} {row.get('state', '')}")
    return rows


def measured_models(service: RepositoryProcess) -> set[str]:
    """The models with Triton's metrics."""
    return set(re.findall(r'nv_inference_count\{model="(\w+)"', service.http("/metrics").body.decode()))


def test_workers_are_named_by_their_models_where_processes_are_listed(service: RepositoryProcess) -> None:
    names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in service.worker_pids()}
    assert names == {f"{name}:1.0" for name in STEADY}


def test_an_ensemble_is_loaded_with_its_models_and_unloaded_with_them_or_without(
    service: RepositoryProcess,
) -> None:
    service.wait_for_log("Every client of http_port and rpc_port may load and unload models")
    unloaded = dict.fromkeys(("changing", "ensemble", "over_policy", "policy"), " ")
    expected = {**unloaded, **dict.fromkeys(STEADY, "1 READY")}
    assert index(service) == {name: [state] for name, state in expected.items()}
    assert ask(service, "ensemble").status == 404
    assert order(service, "ensemble", "load").status == 200
    assert data(ask(service, "ensemble", tensor="A")) == data(ask(service, "changing")) == [2, 4]
    assert {"ensemble", "changing", *STEADY} <= measured_models(service)
    assert order(service, "ensemble", "unload").status == 200
    assert ask(service, "ensemble", tensor="A").status == 404
    assert data(ask(service, "changing")) == [2, 4]
    assert order(service, "ensemble", "load").status == 200
    assert order(service, "ensemble", "unload", unload_dependents=True).status == 200
    assert [ask(service, name).status for name in ("ensemble", "changing")] == [404, 404]
    assert index(service)["ensemble"] == ["1 UNAVAILABLE"]
    assert measured_models(service) == set(STEADY)


def test_an_ensemble_that_comes_after_its_model_goes_on_with_the_newest_version_of_it(
    service: RepositoryProcess, repository: Path
) -> None:
    assert order(service, "changing", "load").status == 200
    assert order(service, "ensemble", "load").status == 200
    assert data(ask(service, "ensemble", tensor="A")) == [2, 4]
    newer = write_model(repository, "changing", TENSORS, times(9), version="2") / "2"
    try:
        assert order(service, "changing", "load").status == 200
        assert data(ask(service, "ensemble", tensor="A")) == [9, 18]
        unlike = TENSORS.replace("INPUT0", "OTHER")
        write_model(repository, "changing", unlike, times(3).replace("INPUT0", "OTHER"), version="2")
        assert order(service, "changing", "load").status == 200
        answer = ask(service, "ensemble", tensor="A")
        assert (answer.status, "in ensemble 'ensemble', step 1" in answer.json["error"]) == (400, True), (
            answer
        )
    finally:
        shutil.rmtree(newer)
        write_model(repository, "changing", TENSORS, times(2))
        assert order(service, "ensemble", "unload", unload_dependents=True).status == 200


def test_an_ensemble_that_is_served_has_its_models_whatever_is_ordered_at_once(
    service: RepositoryProcess,
) -> None:
    orders: list[tuple[str, dict[str, bool]]] = [("unload", {"unload_dependents": True}), ("load", {})]
    assert order(service, "ensemble", "load").status == 200
    for _ in range(3):
        with ThreadPoolExecutor(6) as pool:
            done = [pool.submit(order, service, "ensemble", what, **how) for what, how in 3 * orders]
        assert {one.result().status for one in done} == {200}
        states = index(service)
        assert states["ensemble"] == states["changing"], states
        assert ask(service, "ensemble", tensor="A").status == ask(service, "changing").status
    assert order(service, "ensemble", "load").status == 200
    assert data(ask(service, "ensemble", tensor="A")) == [2, 4]
    assert order(service, "ensemble", "unload", unload_dependents=True).status == 200


def test_versions_are_those_of_the_policy_each_asked_by_its_number(service: RepositoryProcess) -> None:
    assert order(service, "policy", "load").status == 200
    assert service.http("/v2/models/policy").json["versions"] == ["2", "3"]
    assert [data(ask(service, "policy", version)) for version in ("2", "3", "")] == [[2, 4], [3, 6], [3, 6]]
    assert ask(service, "policy", "1").status == 404
    counted = service.http("/v2/models/policy/stats").json["model_stats"]
    assert [(stats["version"], stats["inference_count"]) for stats in counted] == [("2", 1), ("3", 2)]


def test_an_ensemble_is_unloaded_with_all_versions_of_its_models(service: RepositoryProcess) -> None:
    assert order(service, "over_policy", "load").status == 200
    assert service.http("/v2/models/policy").json["versions"] == ["2", "3"]
    assert order(service, "over_policy", "unload", unload_dependents=True).status == 200
    assert [ask(service, "policy", version).status for version in ("2", "3")] == [404, 404]


def test_a_model_that_is_being_loaded_or_unloaded_is_told_so(
    service: RepositoryProcess, repository: Path
) -> None:
    flag = repository / "go"
    waits = f"""
import time
from pathlib import Path


class TritonPythonModel:
    def initialize(self, args):
        while not Path({str(flag)!r}).exists():
            time.sleep(0.01)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
    folder = write_model(repository, "slow", TENSORS, waits)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(order, service, "slow", "load")
        wait_until(lambda: index(service)["slow"] == ["1 LOADING"], "the index tells of the load")
        flag.write_text("")
        assert loading.result().status == 200
    assert index(service)["slow"] == ["1 READY"]
    assert order(service, "slow", "unload").status == 200
    assert index(service)["slow"] == ["1 UNAVAILABLE"]
    shutil.rmtree(folder)


def test_a_model_is_loaded_changed_and_unloaded_while_three_others_are_asked(
    service: RepositoryProcess, repository: Path
) -> None:
    stop = threading.Event()
    answers: list[list[float]] = []

    def load(name: str) -> None:
        while not stop.is_set():
            answers.append(data(ask(service, name)))

    with ThreadPoolExecutor(len(STEADY)) as pool:
        asking = [pool.submit(load, name) for name in STEADY]
        try:
            _change(service, repository)
        finally:
            stop.set()
    for one in asking:
        one.result()
    assert answers
    assert {tuple(one) for one in answers} == {(10, 20)}


def _change(service: RepositoryProcess, repository: Path) -> None:
    """Load a model, change its code, give it another version, and unload it."""
    for factor, version in ((3, "1"), (4, "1"), (6, "2")):
        write_model(repository, "changing", TENSORS, times(factor), version=version)
        assert order(service, "changing", "load").status == 200
        assert data(ask(service, "changing")) == [factor, 2 * factor]
    assert service.http("/v2/models/changing").json["versions"] == ["2"]
    assert order(service, "changing", "unload").status == 200
    shutil.rmtree(repository / "changing" / "2")


def test_code_that_was_changed_within_a_second_is_what_runs(
    service: RepositoryProcess, repository: Path
) -> None:
    folder = write_model(repository, "hasty", TENSORS, times(3))
    code = folder / "1" / "model.py"
    for moment_ns, factor in ((1, 3), (2, 4)):
        write_model(repository, "hasty", TENSORS, times(factor))
        os.utime(code, ns=(moment_ns, 1_700_000_000_000_000_000 + moment_ns))
        assert order(service, "hasty", "load").status == 200
        assert data(ask(service, "hasty")) == [factor, 2 * factor]
    assert order(service, "hasty", "unload").status == 200
    assert not list(folder.rglob("__pycache__"))
    shutil.rmtree(folder)


def test_a_load_that_fails_leaves_what_was_served(service: RepositoryProcess, repository: Path) -> None:
    folder = write_model(repository, "fragile", TENSORS, times(5))
    assert order(service, "fragile", "load").status == 200
    try:
        write_model(repository, "fragile", TENSORS, "raise RuntimeError('not today')\n")
        answer = order(service, "fragile", "load")
        assert answer.status == 400
        assert "version 1 is at UNAVAILABLE state: Internal: RuntimeError: not today" in answer.json["error"]
        assert data(ask(service, "fragile")) == [5, 10]
        write_model(repository, "fragile", "no configuration")
        assert "failed to poll" in order(service, "fragile", "load").json["error"]
        assert data(ask(service, "fragile")) == [5, 10]
        assert service.http("/v2/health/ready").status == 200
        write_model(repository, "fragile", TENSORS, "raise RuntimeError('not today')\n")
        assert order(service, "fragile", "unload").status == 200
        assert service.http("/v2/health/ready").status == 200
        assert order(service, "fragile", "load").status == 400
        assert service.http("/v2/health/ready").status == 400
        write_model(repository, "fragile", TENSORS, times(6))
        assert order(service, "fragile", "load").status == 200
        assert service.http("/v2/health/ready").status == 200
    finally:
        shutil.rmtree(folder)


def test_a_client_gives_configuration_and_files_of_its_own(service: RepositoryProcess) -> None:
    tensors = {"data_type": "TYPE_FP32", "dims": [2]}
    config = {
        "backend": "python",
        "max_batch_size": 2,
        "input": [{"name": "INPUT0", **tensors}],
        "output": [{"name": "OUTPUT0", **tensors}],
    }
    code = "import triton_python_backend_utils as pb_utils\n" + times(7)
    files = {"file:/1/model.py": base64.b64encode(code.encode()).decode()}
    assert order(service, "given", "load", config=json.dumps(config), **files).status == 200
    assert data(ask(service, "given")) == [7, 14]
    assert service.http("/v2/models/given/config").json["max_batch_size"] == 2
    refused = order(service, "given", "load", config=json.dumps(config), **{"file:../model.py": ""})
    assert (refused.status, "leads out of the model's folder" in refused.json["error"]) == (400, True)
    few = {**config, "instance_group": [{"count": -1}]}
    negative = order(service, "given", "load", config=json.dumps(few), **files)
    assert (negative.status, data(ask(service, "given"))) == (500, [7, 14]), negative
    clash = order(service, "given", "load", config=json.dumps(config), **{**files, "file:1": ""})
    assert (clash.status, "can't be written" in clash.json["error"]) == (400, True), clash
    unknown = order(service, "given", "load", strange=1)
    assert (unknown.status, unknown.json["error"]) == (400, "unrecognized load parameter 'strange'.")
    assert order(service, "given", "load", config=3).status == 500
    assert order(service, "given", "unload").status == 200


def test_files_of_clients_go_with_their_model_and_those_of_a_killed_server_at_the_next_start(
    repository: Path, tmp_path: Path
) -> None:
    tensors = {"data_type": "TYPE_FP32", "dims": [2]}
    sides = {"input": [{"name": "INPUT0", **tensors}], "output": [{"name": "OUTPUT0", **tensors}]}
    config = json.dumps({"backend": "python", "max_batch_size": 4, **sides})

    def load(factor: int, **changes: Any) -> int:
        code = "import triton_python_backend_utils as pb_utils\n" + times(factor)
        files = {"file:1/model.py": base64.b64encode(code.encode()).decode()}
        return order(service, "given", "load", **{"config": config, **files, **changes}).status

    def files() -> list[str]:
        return [path.read_text("utf-8") for path in tmp_path.rglob("model.py")]

    start = RepositoryProcess(
        repository, arguments=["--model-control-mode=explicit"], env={"TMPDIR": str(tmp_path)}
    )
    with start as service:
        for factor in (3, 5):
            assert load(factor) == 200
            assert data(ask(service, "given")) == [factor, 2 * factor]
            assert [f"* {factor}" in text for text in files()] == [True]
        assert load(7, config='{"backend": "none"}') != 200
        assert [("* 5" in text) for text in files()] == [True]
        assert order(service, "given", "unload").status == 200
        assert files() == []
        assert load(9) == 200
        service.process.kill()
        service.process.wait()
        assert len(files()) == 1
        service.start()
        service.wait_until_ready()
        assert files() == []


@pytest.mark.parametrize("name", ["../outside", "a/../../../outside", "..", ".hidden", ""])
def test_a_name_that_leads_out_of_the_folder_for_files_is_refused(
    service: RepositoryProcess, name: str, tmp_path: Path
) -> None:
    with v2_grpc.InferenceServerClient(f"127.0.0.1:{service.rpc_port}") as client:
        with pytest.raises(InferenceServerException, match=r"can't be the name of a model|must not be empty"):
            client.load_model(name, config="{}", files={"file:1/model.py": b"raise SystemExit"})
        assert name not in {row.name for row in client.get_model_repository_index().models}
