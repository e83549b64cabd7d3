"""Models of a repository: what is served, how each answers, and what becomes of those that can't be."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as rpc
from tritonclient.utils import InferenceServerException

from tests.support.onnx_models import onnx_file
from tests.support.repository_process import RepositoryProcess
from tests.support.triton_repository import write_model

TEXT = 'input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
WORDS = """
class TritonPythonModel:
    def initialize(self, args):
        from neighbour import FACTOR
        self.factor = FACTOR

    def execute(self, requests):
        answers = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[:, 0]
            ids = np.zeros((len(texts), 4), np.float32)
            for row, text in enumerate(texts):
                if text == b"raise":
                    raise ValueError("no such word")
                if text == b"exit":
                    import os
                    os._exit(3)
                ids[row, : min(4, len(text))] = list(text[:4])
            outputs = {"IDS": ids * self.factor, "COPY": texts.reshape(-1, 1)}
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor(*one) for one in outputs.items()]))
        return answers
"""
LABELS = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        scores = pb_utils.get_input_tensor_by_name(request, "SCORES").as_numpy()
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        told = [[f"{t.decode()}={s.sum():g}"] for t, s in zip(text[:, 0], scores)]
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array(told, dtype=object))])
"""
ASKS = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        print("this line is none of the configuration")
        config.add_input({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "TOLD", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(4)
        return config

    async def ask(self, model, tensor):
        asked = pb_utils.InferenceRequest(
            model_name=model, requested_output_names=["O"], inputs=[pb_utils.Tensor("I", tensor.as_numpy())]
        )
        answer = await asked.async_exec()
        if answer.has_error():
            return [[answer.error().message()]]
        return answer.output_tensors()[0].as_numpy()

    def execute(self, requests):
        import asyncio
        answers = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "TEXT")
            model = "nobody" if text.as_numpy()[0, 0] == b"lost" else "same"
            told = np.array(asyncio.run(self.ask(model, text)), dtype=object)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", told)]))
        return answers
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "LABEL" data_type: TYPE_STRING dims: [ 1 ] },
         { name: "NUMBERS" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [
  { model_name: "labels" model_version: -1
    input_map { key: "SCORES" value: "scores" } input_map { key: "TEXT" value: "copy" }
    output_map { key: "TOLD" value: "LABEL" } },
  { model_name: "words" model_version: -1 input_map { key: "TEXT" value: "TEXT" }
    output_map { key: "IDS" value: "NUMBERS" } output_map { key: "COPY" value: "copy" } },
  { model_name: "scaled" model_version: -1 input_map { key: "x" value: "NUMBERS" }
    output_map { key: "y" value: "scores" } } ] }
"""
NESTED = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "A" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "B" data_type: TYPE_STRING dims: [ 1 ] } ]
ensemble_scheduling { step [
  { model_name: "whole" model_version: 1 input_map { key: "TEXT" value: "A" }
    output_map { key: "LABEL" value: "l" } output_map { key: "NUMBERS" value: "n" } },
  { model_name: "same" input_map { key: "I" value: "l" } output_map { key: "O" value: "B" } } ] }
"""
BATCHED = "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 2000 }\n"


def tensor(kind: str, name: str, data_type: str = "STRING", dims: int = 1) -> str:
    return f'{kind} {{ name: "{name}" data_type: TYPE_{data_type} dims: {dims} }}\n'


def write_repository(folder: Path) -> Path:
    outputs = tensor("output", "IDS", "FP32", 4) + tensor("output", "COPY")
    words = write_model(folder, "words", f'backend: "python"\n{BATCHED}{TEXT}{outputs}', WORDS)
    (words / "1" / "neighbour.py").write_text("FACTOR = 2\n", "utf-8")
    told = tensor("input", "SCORES", "FP32", 4) + tensor("output", "TOLD")
    write_model(folder, "labels", f"# of texts\nbackend: 'python'\n{BATCHED}{TEXT}{told}", LABELS)
    (folder / "scaled" / "1").mkdir(parents=True)  # without config.pbtxt
    shutil.copyfile(onnx_file("scaled"), folder / "scaled" / "1" / "model.onnx")
    same = tensor("input", "I") + tensor("output", "O")
    write_model(folder, "same", f'backend: "identity"\nmax_batch_size: 8\n{same}')
    write_model(folder, "asks", None, ASKS)
    write_model(folder, "whole", ENSEMBLE)
    write_model(folder, "nested", NESTED)
    write_model(folder, "misspelt", f'backend: "python"\nmax_batch_sise: 8\n{TEXT}', WORDS)
    write_model(folder, "raises", f'backend: "python"\n{TEXT}{same}', "import nowhere_to_be_found\n")
    write_model(folder, "lacking", NESTED.replace('"same"', '"gone"'))
    return folder


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    with RepositoryProcess(write_repository(tmp_path_factory.mktemp("models")), wait=False) as process:
        process.wait_for_log("is ready: http_port")
        yield process


@pytest.fixture
def client(service: RepositoryProcess) -> Iterator[rpc.InferenceServerClient]:
    with rpc.InferenceServerClient(service.rpc_address) as made:
        yield made


def texts(name: str, *given: str) -> list[rpc.InferInput]:
    made = rpc.InferInput(name, [len(given), 1], "BYTES")
    made.set_data_from_numpy(np.array([[text.encode()] for text in given], object))
    return [made]


def states(service: RepositoryProcess) -> dict[str, Any]:
    rows = service.http("/v2/repository/index", b"").json
    return {row["name"]: row for row in rows}


def test_an_ensemble_joins_python_and_onnx_models(client: rpc.InferenceServerClient) -> None:
    answer = client.infer("whole", texts("TEXT", "ab", "c"))
    numbers = np.zeros((2, 4), np.float32)
    numbers[0, :2], numbers[1, 0] = [2 * ord("a"), 2 * ord("b")], 2 * ord("c")
    np.testing.assert_array_equal(answer.as_numpy("NUMBERS"), numbers)
    sums = (numbers * np.float32(4500)).sum(axis=1)
    assert [one.decode() for one in answer.as_numpy("LABEL")[:, 0]] == [f"ab={sums[0]:g}", f"c={sums[1]:g}"]


def test_an_ensemble_stands_in_another(client: rpc.InferenceServerClient) -> None:
    inner = client.infer("whole", texts("TEXT", "hello")).as_numpy("LABEL")
    np.testing.assert_array_equal(client.infer("nested", texts("A", "hello")).as_numpy("B"), inner)


def test_a_model_without_a_configuration_tells_what_its_file_says(client: rpc.InferenceServerClient) -> None:
    config = client.get_model_config("scaled", as_json=True)["config"]
    assert (config["backend"], config["max_batch_size"]) == ("onnxruntime", 4)
    assert [one["name"] for one in config["input"]] == ["x"]
    assert "dynamic_batching" in config


def test_a_python_model_completes_its_configuration_and_asks_other_models(
    client: rpc.InferenceServerClient,
) -> None:
    config = client.get_model_config("asks", as_json=True)["config"]
    assert (config["max_batch_size"], config["input"][0]["name"]) == (4, "TEXT")
    assert client.infer("asks", texts("TEXT", "hello")).as_numpy("TOLD")[0, 0] == b"hello"
    told = client.infer("asks", texts("TEXT", "lost")).as_numpy("TOLD")[0, 0]
    assert told == b"Request for unknown model: 'nobody' is not found"


def test_an_error_names_the_step_and_its_neighbours_are_answered(client: rpc.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as refused:
        client.infer("nested", texts("A", "raise"))
    told = refused.value.message()
    assert "in ensemble 'nested', step 1.2 ('words' version 1): " in told
    assert "ValueError: no such word" in told and "model.py(" in told
    assert client.infer("nested", texts("A", "x")).as_numpy("B").shape == (1, 1)


def test_a_request_that_kills_its_worker_is_refused_and_the_others_go_on(
    service: RepositoryProcess, client: rpc.InferenceServerClient
) -> None:
    with pytest.raises(InferenceServerException):
        client.infer("words", texts("TEXT", "exit"))
    assert client.infer("scaled", floats()).as_numpy("y").shape == (1, 4)
    assert client.infer("words", texts("TEXT", "abc")).as_numpy("IDS").shape == (1, 4)


def floats() -> list[rpc.InferInput]:
    made = rpc.InferInput("x", [1, 4], "FP32")
    made.set_data_from_numpy(np.ones((1, 4), np.float32))
    return [made]


def test_what_can_not_be_served_leaves_the_others_and_says_why(service: RepositoryProcess) -> None:
    rows = states(service)
    assert {name: row["state"] for name, row in rows.items()} == {
        "words": "READY", "labels": "READY", "scaled": "READY", "same": "READY", "whole": "READY",
        "nested": "READY", "asks": "READY",
        "misspelt": "UNAVAILABLE", "raises": "UNAVAILABLE", "lacking": "UNAVAILABLE",
    }  # fmt: skip
    assert (
        "line 2: unknown field 'max_batch_sise' in ModelConfig; did you mean max_batch_size?"
        in rows["misspelt"]["reason"]
    )
    assert "No module named 'nowhere_to_be_found'" in rows["raises"]["reason"]
    assert "contains models that are not available or ambiguous: gone" in rows["lacking"]["reason"]
    for name, row in rows.items():
        if row["state"] != "READY":
            assert row["reason"].partition("\n")[0] in service.log
            answer = service.http(f"/v2/models/{name}/infer", b'{"inputs": []}')
            assert (answer.status, "has no available versions" in answer.json["error"]) == (404, True)


@pytest.mark.parametrize("length", ["-1", "100000"])
def test_a_length_of_the_json_that_can_not_be_is_refused(service: RepositoryProcess, length: str) -> None:
    headers = {"Inference-Header-Content-Length": length}
    answer = service.http("/v2/models/scaled/infer", b"{}", headers=headers)
    assert (answer.status, f"got: {length}" in answer.json["error"]) == (400, True)


def test_requests_of_several_callers_share_a_call_of_execute(client: rpc.InferenceServerClient) -> None:
    answers: list[Any] = []
    for n in range(32):
        client.async_infer(
            "words", texts("TEXT", f"t{n}"), lambda result, error: answers.append((result, error))
        )
    while len(answers) < 32:
        client.is_server_live()
    assert not [error for _, error in answers if error]
    told = client.get_inference_statistics("words", as_json=True)["model_stats"][0]
    assert max(int(batch["batch_size"]) for batch in told["batch_stats"]) > 1
