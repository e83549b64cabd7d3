"""Python models written as the examples of Triton's Python backend are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as rpc
from tritonclient.utils import InferenceServerException

from tests.support.repository_process import RepositoryProcess
from tests.support.triton_repository import write_model

TENSORS = """
backend: "python"
input { name: "X" data_type: TYPE_STRING dims: 1 }
output { name: "Y" data_type: TYPE_STRING dims: 1 }
"""
# Answers with what it was told beside its input, or with the error whose code is the input.
TELLS = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        code = request.inputs()[0].as_numpy()[0].decode()
        if code:
            error = pb_utils.TritonError(code, getattr(pb_utils.TritonError, code))
            return pb_utils.InferenceResponse(error=error)
        beside = [request.request_id(), request.correlation_id(), request.flags(), request.priority()]
        told = f"{beside} {request.timeout()} {sorted(eval(request.parameters()).items())}"
        tensors = [pb_utils.Tensor("Y", np.array([told], dtype=object))]
        return pb_utils.InferenceResponse(tensors, parameters={"text": "three"})
"""
ASKS = """
import asyncio
from .neighbour import JOINED_BY


class TritonPythonModel:
    def initialize(self, args):
        self.lock = asyncio.Lock()

    async def execute(self, requests):
        return await asyncio.gather(*map(self.answer, requests))

    async def answer(self, request):
        asked = pb_utils.InferenceRequest(
            request_id="asked", model_name="tells", requested_output_names=["Y"], inputs=request.inputs(),
            correlation_id=77, flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END, timeout=60_000_000,
            priority=2, parameters={"a": 5, "b": "text"},
        )
        async with self.lock:
            one, several = await asyncio.gather(asked.async_exec(), asked.async_exec(decoupled=True))
        answers = [one, *several]
        if answers[0].has_error():
            raise pb_utils.TritonModelException(answers[0].error().message())
        first = answers[0].output_tensors()[0].as_numpy()[0].decode()
        told = JOINED_BY.join([first, answers[1].parameters()])
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([told], dtype=object))])
"""
YIELDS = """
class TritonPythonModel:
    def execute(self, requests):
        yield from requests
"""
COMPLETES = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        pb_utils.Logger.log_info("adds tensors")
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [2]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [2]})
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        return config

    def execute(self, requests):
        given = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]) for array in given]
"""
LOGS = """
class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_info("begins")
        pb_utils.Logger.log_verbose("begins slowly")

    def execute(self, requests):
        logger = pb_utils.Logger
        logger.log_warn("a warning")
        logger.log_error("an error")
        logger.log("of a level", logger.ERROR)
        logger.log("of no level")
        tensors = [pb_utils.Tensor("Y", request.inputs()[0].as_numpy()) for request in requests]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
"""
LEAVES = """
import os
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        os._exit(0)
"""
REQUIRES = "import a_package_that_is_nowhere\n"
NAMESAKES = """
import client
import pipeline as stages
from convert.names import NAME


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        stages.check(config)
        return config

    def execute(self, requests):
        from pipeline import joined

        told = joined(client.NAME, NAME, stages.__file__.rpartition("/")[2])
        tensor = pb_utils.Tensor("Y", np.array([told], dtype=object))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""
STAGES = """
import client

def joined(*names):
    return " ".join([*names, client.NAME])

def check(config):
    assert client.NAME == "client"
"""
TYPES = """
backend: "python"
input { name: "X" data_type: TYPE_STRING dims: 1 }
output { name: "Y" data_type: TYPE_STRING dims: -1 }
"""
# Answers with an array of the dtype and the shape that the input names.
MAKES = """
import json


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        dtype, shape = json.loads(request.inputs()[0].as_numpy()[0])
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros(shape, dtype))])
"""
PARTLY = 'input { name: "X" }\noutput { name: "Y" data_type: TYPE_FP32 dims: 2 }\n'


def write_repository(folder: Path) -> Path:
    write_model(folder, "tells", TENSORS, TELLS)
    asks = write_model(folder, "asks", TENSORS, ASKS)
    (asks / "1" / "neighbour.py").write_text('JOINED_BY = " and "\n', "utf-8")
    namesakes = write_model(folder, "namesakes", TENSORS, NAMESAKES)
    (namesakes / "1" / "pipeline.py").write_text(STAGES, "utf-8")
    (namesakes / "1" / "convert").mkdir()
    (namesakes / "1" / "convert" / "__init__.py").touch()
    (namesakes / "1" / "convert" / "names.py").write_text('NAME = "names"\n', "utf-8")
    (namesakes / "client.py").write_text('NAME = "client"\n', "utf-8")
    write_model(folder, "yields", TENSORS, YIELDS)
    write_model(folder, "makes", TYPES, MAKES)
    write_model(folder, "completes", PARTLY, COMPLETES)
    write_model(folder, "leaves", PARTLY, LEAVES)
    write_model(folder, "logs", TENSORS, LOGS)
    requires = write_model(folder, "requires", TENSORS, REQUIRES)
    (requires / "requirements.txt").write_text("a-package-that-is-nowhere\n", "utf-8")
    (folder / "completes" / "requirements.txt").write_text("numpy\n", "utf-8")
    write_model(folder, "disagrees", PARTLY.replace("FP32", "INT32"), COMPLETES)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    folder = write_repository(tmp_path_factory.mktemp("python"))
    with RepositoryProcess(folder, arguments=["--strict-readiness=false", "--log-verbose=1"]) as process:
        yield process


@pytest.fixture(scope="module")
def client(models: RepositoryProcess) -> Iterator[rpc.InferenceServerClient]:
    with rpc.InferenceServerClient(f"localhost:{models.rpc_port}") as client:
        yield client


def ask(client: rpc.InferenceServerClient, model: str) -> str:
    tensor = rpc.InferInput("X", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([b""], object))
    return str(client.infer(model, [tensor]).as_numpy("Y")[0].decode())


def test_an_execute_that_is_a_coroutine_asks_others_with_all_that_it_says_beside_the_inputs(
    client: rpc.InferenceServerClient,
) -> None:
    told = "['asked', 77, 2, 2] 60000000 [('a', 5), ('b', 'text')] and {\"text\":\"three\"}"
    assert [ask(client, "asks"), ask(client, "asks")] == [told, told]


def test_a_model_imports_its_neighbours_that_are_named_as_our_packages(
    client: rpc.InferenceServerClient,
) -> None:
    assert ask(client, "namesakes") == "client names pipeline.py client"


@pytest.mark.parametrize(
    ("code", "status"), [("CANCELLED", 400), ("UNKNOWN", 400), ("UNSUPPORTED", 501), ("INTERNAL", 500)]
)
def test_an_error_of_a_model_has_the_status_of_its_code(
    models: RepositoryProcess, code: str, status: int
) -> None:
    given = {"name": "X", "shape": [1], "datatype": "BYTES", "data": [code]}
    answer = models.http("/v2/models/tells/infer", json.dumps({"inputs": [given]}))
    assert (answer.status, answer.json["error"]) == (status, code)


def test_an_execute_that_yields_is_refused(client: rpc.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="in the execute return, found type 'generator'"):
        ask(client, "yields")


def test_a_model_completes_also_what_its_file_tells_in_part(client: rpc.InferenceServerClient) -> None:
    config = client.get_model_config("completes", as_json=True)["config"]
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (4, ["2"])
    assert "dynamic_batching" in config


def test_a_model_that_does_not_agree_with_its_file_is_not_served(models: RepositoryProcess) -> None:
    rows = {one["name"]: one for one in models.http("/v2/repository/index", b"").json}
    assert (
        "configuration expects datatype TYPE_INT32, model provides TYPE_FP32" in rows["disagrees"]["reason"]
    )
    assert "returned no configuration" in rows["leaves"]["reason"]


def test_lines_of_its_logger_are_in_the_log_with_the_model_and_their_level(
    models: RepositoryProcess, client: rpc.InferenceServerClient
) -> None:
    ask(client, "logs")
    for level, text in (
        ("INFO", "begins"),
        ("DEBUG", "begins slowly"),
        ("WARNING", "a warning"),
        ("ERROR", "an error"),
        ("ERROR", "of a level"),
        ("INFO", "of no level"),
    ):
        models.wait_for_log(f" {level} [logs:1.0] {text}\n")
    models.wait_for_log("Model completes, auto_complete_config: INFO adds tensors\n")


def test_requirements_are_not_installed_without_the_flag_that_the_error_names(
    models: RepositoryProcess, client: rpc.InferenceServerClient
) -> None:
    rows = {row["name"]: row for row in models.http("/v2/repository/index", b"").json}
    told = rows["requires"]["reason"]
    assert "No module named 'a_package_that_is_nowhere'" in told
    assert "requires/requirements.txt is not installed; --install-requirements has pip install" in told
    assert client.is_model_ready("completes")  # its packages are there
    models.wait_for_log("completes/requirements.txt is not installed; --install-requirements")


@pytest.mark.parametrize(
    ("dtype", "shape", "told"),
    [
        ("float64", [3, 4], "output 'Y' is float64 [3, 4]"),
        ("int32", [2], "output 'Y' is int32 [2]"),
        ("object", [3, 4], "output 'Y' is BYTES [3, 4]"),
        ("object", [], "output 'Y' is BYTES []"),
        ("object", [0], None),
        ("object", [5], None),
        ("<U3", [5], None),
    ],
)
def test_an_output_has_the_datatype_and_the_dims_of_the_configuration(
    models: RepositoryProcess, dtype: str, shape: list[int], told: str | None
) -> None:
    given = {"name": "X", "shape": [1], "datatype": "BYTES", "data": [json.dumps([dtype, shape])]}
    answer = models.http("/v2/models/makes/infer", json.dumps({"inputs": [given]}))
    if told is None:
        assert (answer.status, answer.json["outputs"][0]["shape"]) == (200, shape)
        return
    assert answer.status == 500
    expected = f"message: {told}, but the configuration of model 'makes' declares BYTES [-1]; correct execute"
    assert expected in answer.json["error"]
