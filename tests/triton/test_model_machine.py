"""Rule machine of a repository's models: loads, unloads, requests and kills, in orders that Hypothesis draws.

`MODEL_MACHINE_EXAMPLES=50` draws more sequences than `make test` does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.onnx_models import onnx_file
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import HttpAnswer
from tests.support.triton_repository import write_model

EXAMPLES = int(os.environ.get("MODEL_MACHINE_EXAMPLES", "2"))
STEPS = 20
ONNX_FACTOR = 4500  # of tests/fixtures/onnx/scaled.onnx
ROWS, FACTOR = 8, 3  # of the repository's own configurations
TENSORS = {
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}],
}
CODE = """
import json


class TritonPythonModel:
    def initialize(self, args):
        self.factor = int(json.loads(args["model_config"])["parameters"]["factor"]["string_value"])

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() * self.factor for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", array)]) for array in arrays]
"""
BACKENDS = {"onnx_a": "onnxruntime", "onnx_b": "onnxruntime", "script": "python"}
MODELS = tuple(BACKENDS)
models = st.sampled_from(MODELS)


def model_config(name: str, rows: int, factor: int) -> dict[str, Any]:
    parameters = {"factor": {"string_value": str(factor)}}
    return {"backend": BACKENDS[name], "max_batch_size": rows, "parameters": parameters, **TENSORS}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    folder = tmp_path_factory.mktemp("models")
    for name, backend in BACKENDS.items():
        parameters = f'parameters {{ key: "factor" value {{ string_value: "{FACTOR}" }} }}'
        tensors = "".join(
            f'{side} {{ name: "{name}" data_type: TYPE_FP32 dims: 4 }}\n'
            for side, name in (("input", "x"), ("output", "y"))
        )
        config = f'backend: "{backend}"\nmax_batch_size: {ROWS}\n{tensors}{parameters}\n'
        model = write_model(folder, name, config, CODE if backend == "python" else None)
        if backend == "onnxruntime":
            shutil.copyfile(onnx_file("scaled"), model / "1" / "model.onnx")
    with RepositoryProcess(folder, arguments=["--model-control-mode=explicit"]) as process:
        yield process


class ModelMachine(RuleBasedStateMachine):
    """The models of a server, and what must be served by now.

    loaded: rows and factor of each served model's configuration. killed: models whose worker was killed, and
    which have answered nothing since. Loading such a model again changes nothing, and waits for no worker.
    """

    service: ClassVar[RepositoryProcess]

    def __init__(self) -> None:
        super().__init__()
        self.loaded: dict[str, tuple[int, int]] = {}
        self.killed: set[str] = set()
        self.number = 0  # of the latest request, so that no two have the same inputs

    @rule(name=models)
    def load(self, name: str) -> None:
        self.change(name, "load", {})
        self.loaded[name] = ROWS, FACTOR

    @rule(name=models, rows=st.integers(1, 4), factor=st.integers(2, 9))
    def load_with_other_configuration(self, name: str, rows: int, factor: int) -> None:
        self.change(name, "load", {"config": json.dumps(model_config(name, rows, factor))})
        self.loaded[name] = rows, factor

    @rule(name=models)
    def load_with_useless_configuration(self, name: str) -> None:
        config = {**model_config(name, ROWS, FACTOR), "backend": "none"}
        answer = self.order(name, "load", {"config": json.dumps(config)})
        assert answer.status in (400, 500), answer

    @rule(name=models)
    def unload(self, name: str) -> None:
        self.change(name, "unload", {})
        self.loaded.pop(name, None)
        self.killed.discard(name)

    @precondition(lambda machine: machine.loaded.keys() - machine.killed)
    @rule(data=st.data())
    def kill_worker(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.loaded.keys() - self.killed)))
        for pid in self.service.worker_pids():
            if Path(f"/proc/{pid}/comm").read_text().startswith(name):
                os.kill(pid, signal.SIGKILL)
        self.killed.add(name)

    @rule(name=models)
    def infer(self, name: str) -> None:
        answer = self.ask(name)
        if name not in self.loaded:
            assert answer.status == 404, answer
            return
        self.check_answer(name, answer)
        self.killed.discard(name)
        config = self.service.http(f"/v2/models/{name}/config").json
        assert config["max_batch_size"] == self.loaded[name][0]

    @rule()
    def read_index(self) -> None:
        rows = {row["name"]: row for row in self.service.http("/v2/repository/index", b"").json}
        assert set(rows) == set(MODELS)
        for name in set(MODELS) - self.killed:
            assert (rows[name].get("state") == "READY") == (name in self.loaded), rows

    @invariant()
    def ready_is_what_is_loaded(self) -> None:
        assert self.service.http("/v2/health/live").status == 200
        ready = {name for name in MODELS if self.service.http(f"/v2/models/{name}/ready").status == 200}
        assert ready | self.killed == self.loaded.keys() | self.killed

    def teardown(self) -> None:
        for name in MODELS:
            self.order(name, "unload", {})

    def change(self, name: str, what: str, parameters: dict[str, str]) -> None:
        """Load or unload a model, while another one goes on serving."""
        other = next((other for other in sorted(self.loaded) if other != name), None)
        with ThreadPoolExecutor(1) as pool:
            order = pool.submit(self.order, name, what, parameters)
            while other is not None and not order.done():
                self.check_answer(other, self.ask(other))
                self.killed.discard(other)
        assert order.result().status == 200, order.result()

    def order(self, name: str, what: str, parameters: dict[str, str]) -> HttpAnswer:
        body = json.dumps({"parameters": parameters}) if parameters else b""
        return self.service.http(f"/v2/repository/models/{name}/{what}", body)

    def ask(self, name: str) -> HttpAnswer:
        self.number += 1
        row = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [self.number, 2, 3, 4]}
        return self.service.http(f"/v2/models/{name}/infer", json.dumps({"inputs": [row]}))

    def check_answer(self, name: str, answer: HttpAnswer) -> None:
        assert answer.status == 200, answer
        _, factor = self.loaded[name]
        factor = factor if BACKENDS[name] == "python" else ONNX_FACTOR
        assert answer.json["outputs"][0]["data"] == [factor * n for n in (self.number, 2, 3, 4)]


def test_models_are_as_the_orders_say_whatever_their_sequence(service: RepositoryProcess) -> None:
    ModelMachine.service = service
    run_state_machine_as_test(
        ModelMachine,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=STEPS, derandomize=True, database=None, deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
    assert "Traceback" not in service.log, service.log
