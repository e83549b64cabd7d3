"""`--model-namespacing`: models of one name in several repositories, and the ensembles that run them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import wait_until
from tests.support.triton_repository import write_model

TENSORS = """
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
"""
ADDING = """
class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + np.float32({amount}))]) for x in arrays]
"""
CALLING = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceRequest(
                model_name="step", inputs=request.inputs(), requested_output_names=["Y"]
            ).exec()
            for request in requests
        ]
"""
ENSEMBLE = f"""
platform: "ensemble" {TENSORS}
ensemble_scheduling {{ step {{
  model_name: "step" input_map {{ key: "X" value: "X" }} output_map {{ key: "Y" value: "Y" }} }} }}
"""
BODY = json.dumps({"inputs": [{"name": "X", "shape": [1], "datatype": "FP32", "data": [1]}]})


def write_repositories(folder: Path) -> list[Path]:
    """Write two repositories, each with `step`, which adds 1 or 10, and models that run `step`."""
    repositories = [folder / "ones", folder / "tens"]
    for repository, amount in zip(repositories, (1, 10), strict=True):
        write_model(repository, "step", f'backend: "python" {TENSORS}', ADDING.format(amount=amount))
        for name in (f"ensemble_{repository.name}", "both"):
            write_model(repository, name, ENSEMBLE)
        write_model(repository, f"caller_{repository.name}", f'backend: "python" {TENSORS}', CALLING)
    return repositories


def infer(service: RepositoryProcess, model: str) -> float | str:
    """Return the output of a model for 1, or the error."""
    answer = service.http(f"/v2/models/{model}/infer", BODY).json
    return float(answer["outputs"][0]["data"][0]) if "outputs" in answer else str(answer["error"])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    repositories = write_repositories(tmp_path_factory.mktemp("namespaces"))
    with RepositoryProcess(*repositories, arguments=["--model-namespacing=true"]) as process:
        yield process


class TestTwoRepositories:
    def test_ensembles_and_python_models_run_the_model_of_their_own_repository(
        self, service: RepositoryProcess
    ) -> None:
        names = ("ensemble_ones", "ensemble_tens", "caller_ones", "caller_tens")
        assert [infer(service, name) for name in names] == [2, 11, 2, 11]

    def test_a_name_of_two_models_is_refused_and_a_numbered_name_is_served(
        self, service: RepositoryProcess
    ) -> None:
        for name in ("step", "both"):
            assert "model namespace must be provided to resolve ambiguity" in str(infer(service, name))
            assert service.http(f"/v2/models/{name}/ready").status == 400
            assert [infer(service, f"{name}%23{number}") for number in (1, 2)] == [2, 11]

    def test_the_index_and_the_metrics_tell_the_models_apart(self, service: RepositoryProcess) -> None:
        index = service.http("/v2/repository/index", "{}").json
        assert [row["state"] for row in index if row["name"] == "step"] == ["READY", "READY"]
        metrics = service.http("/metrics").body.decode()
        lines = [line for line in metrics.splitlines() if line.startswith("nv_inference_request_success")]
        folders = {line.partition('namespace="')[2].partition('"')[0] for line in lines if '"step"' in line}
        assert {Path(folder).name for folder in folders} == {"ones", "tens"}


def test_loads_link_ensembles_to_the_models_that_are_left(tmp_path: Path) -> None:
    ones, tens = write_repositories(tmp_path)
    arguments = ["--model-namespacing=1", "--model-control-mode=explicit"]
    with RepositoryProcess(ones, tens, arguments=arguments, wait=False) as service:
        service.wait_for_log("is ready: http_port")

        def load(name: str) -> int:
            return service.http(f"/v2/repository/models/{name}/load", "{}").status

        assert [load("ensemble_ones"), load("ensemble_tens")] == [200, 200]
        assert "ambiguity" in str(infer(service, "step"))
        shutil.move(ones / "step", tmp_path / "step")
        assert [load("ensemble_ones"), load("ensemble_tens")] == [200, 200]
        assert [infer(service, name) for name in ("ensemble_ones", "ensemble_tens", "step")] == [11, 11, 11]
        shutil.move(tmp_path / "step", ones / "step")
        assert load("ensemble_ones") == 200
        assert [infer(service, name) for name in ("ensemble_ones", "ensemble_tens")] == [2, 11]
        assert "ambiguity" in str(infer(service, "step"))
        assert service.http("/v2/repository/models/step/unload", "{}").status == 200
        assert "no available versions" in str(infer(service, "step"))


def test_polling_serves_the_models_of_a_name_as_they_come_and_go(tmp_path: Path) -> None:
    ones, tens = write_repositories(tmp_path)
    ensembles = ("ensemble_ones", "ensemble_tens")
    (tens / "step").rename(tmp_path / "step")
    arguments = ["--model-namespacing=1", "--model-control-mode=poll", "--repository-poll-secs=1"]
    with RepositoryProcess(ones, tens, arguments=arguments) as service:

        def wait_for(*answers: float) -> None:
            wait_until(lambda: tuple(infer(service, name) for name in ensembles) == answers, str(answers))

        wait_for(2, 2)
        assert infer(service, "step") == 2
        (tmp_path / "step").rename(tens / "step")
        wait_for(2, 11)
        wait_until(lambda: "ambiguity" in str(infer(service, "step")), "the name is that of two models")
        assert [infer(service, f"step%23{number}") for number in (1, 2)] == [2, 11]
        (ones / "step").rename(tmp_path / "step")
        wait_for(11, 11)
        wait_until(lambda: infer(service, "step") == 11, "the name is that of one model")
