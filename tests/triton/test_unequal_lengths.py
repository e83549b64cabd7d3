"""An ensemble as text models are deployed: tokenizer, ONNX model, postprocess; mixed lengths."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as rpc

from tests.support.command_line import paddlewheel
from tests.support.onnx_models import onnx_file
from tests.support.repository_process import RepositoryProcess
from tests.support.triton_repository import write_model

BATCHING = "max_batch_size: 16\ndynamic_batching { max_queue_delay_microseconds: 3000 }\n"
TOKENIZER = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[:, 0]
            ids = np.array([[2 + byte % 60 for byte in text] for text in texts], np.int64)
            outputs = {"ids": ids, "types": np.zeros_like(ids), "mask": np.ones_like(ids)}
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor(*one) for one in outputs.items()]))
        return answers
"""
POSTPROCESS = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            logits = pb_utils.get_input_tensor_by_name(request, "logits").as_numpy()
            outputs = {"label": logits.argmax(-1)[:, None], "score": logits}
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor(*one) for one in outputs.items()]))
        return answers
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 16
input { name: "TEXT" data_type: TYPE_STRING dims: 1 }
output { name: "LABEL" data_type: TYPE_INT64 dims: 1 }
output { name: "SCORE" data_type: TYPE_FP32 dims: 3 }
ensemble_scheduling { step [
  { model_name: "tokenizer" model_version: -1 input_map { key: "TEXT" value: "TEXT" }
    output_map [ { key: "ids" value: "i" }, { key: "types" value: "t" }, { key: "mask" value: "m" } ] },
  { model_name: "classifier" model_version: -1
    input_map [ { key: "input_ids" value: "i" }, { key: "token_type_ids" value: "t" },
                { key: "attention_mask" value: "m" } ]
    output_map { key: "logits" value: "l" } },
  { model_name: "postprocess" model_version: -1 input_map { key: "logits" value: "l" }
    output_map [ { key: "label" value: "LABEL" }, { key: "score" value: "SCORE" } ] } ] }
"""


def tensor(kind: str, name: str, data_type: str, dims: int = -1) -> str:
    return f'{kind} {{ name: "{name}" data_type: TYPE_{data_type} dims: {dims} }}\n'


def write_repository(folder: Path) -> Path:
    tokens = "".join(tensor("output", name, "INT64") for name in ("ids", "types", "mask"))
    head = f'backend: "python"\n{BATCHING}'
    write_model(folder, "tokenizer", head + tensor("input", "TEXT", "STRING", 1) + tokens, TOKENIZER)
    told = tensor("input", "logits", "FP32", 3) + tensor("output", "label", "INT64", 1)
    write_model(folder, "postprocess", head + told + tensor("output", "score", "FP32", 3), POSTPROCESS)
    write_model(folder, "whole", ENSEMBLE)
    for name, model in {"classifier": "classifier", "stubborn": "ignores_mask"}.items():
        write_model(folder, name, f'platform: "onnxruntime_onnx"\n{BATCHING}')
        shutil.copyfile(onnx_file(model), folder / name / "1" / "model.onnx")
    return folder


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    env = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    with RepositoryProcess(write_repository(tmp_path_factory.mktemp("texts")), env=env) as process:
        yield process


def ask(client: rpc.InferenceServerClient, text: str) -> tuple[int, Any]:
    given = rpc.InferInput("TEXT", [1, 1], "BYTES")
    given.set_data_from_numpy(np.array([[text.encode()]], object))
    answer = client.infer("whole", [given])
    return int(answer.as_numpy("LABEL")[0, 0]), answer.as_numpy("SCORE")[0]


def executions(client: rpc.InferenceServerClient, model: str) -> tuple[int, int]:
    """Runs of the model, and the rows of the largest."""
    (told,) = client.get_inference_statistics(model, as_json=True)["model_stats"]
    sizes = [int(batch["batch_size"]) for batch in told["batch_stats"]]
    return int(told["execution_count"]), max(sizes)


def test_texts_of_mixed_length_from_many_clients_are_answered_as_alone(service: RepositoryProcess) -> None:
    chance = random.Random(4)
    texts = ["".join(chance.choices("abcdefghij", k=chance.randrange(3, 40))) for _ in range(200)]
    with rpc.InferenceServerClient(service.rpc_address) as client:
        alone = [ask(client, text) for text in texts]
        before, _ = executions(client, "classifier")
        with ThreadPoolExecutor(20) as clients:
            together = list(clients.map(lambda text: ask(client, text), texts))
        after, largest = executions(client, "classifier")
    for (label, score), (expected, scores) in zip(together, alone, strict=True):
        assert label == expected
        np.testing.assert_allclose(score, scores, rtol=1e-4, atol=1e-5)
    assert after - before < len(texts) / 2  # there are 37 lengths: equal ones alone would be run apart
    assert largest > 2


PARAMETER = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'
RESHAPED = """
output { name: "logits" data_type: TYPE_FP32 dims: [ 3, 1 ] reshape { shape: [ 3 ] } }
"""
BY_ITSELF = """
parameters { key: "intra_op_thread_count" value { string_value: "3" } }
parameters { key: "execution_mode" value { string_value: "1" } }
parameters { key: "inter_op_thread_count" value { string_value: "2" } }
optimization {
  graph { level: -1 }
  execution_accelerators { cpu_execution_accelerator [ { name: "openvino" } ] }
}
"""


def test_explain_tells_what_may_be_padded_and_how_the_model_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    head = f'backend: "onnxruntime"\n{BATCHING}'
    padding = partial(PARAMETER.format, "paddlewheel.padding")
    for name, more in {
        "proven": BY_ITSELF,
        "declared": padding("input_ids=0, token_type_ids=0, attention_mask=0"),
        "reshaped": padding("input_ids=0, token_type_ids=0, attention_mask=0") + RESHAPED,
        "equal": padding("off"),
        "wrong": padding("input_ids"),
        "unknown": padding("ids=0"),
        "together": padding("off") + PARAMETER.format("paddlewheel.placement", "thread"),
        "apart": PARAMETER.format("paddlewheel.placement", "processes"),
    }.items():
        folder = write_model(tmp_path / "models", name, head + more)
        shutil.copyfile(onnx_file("classifier"), folder / "1" / "model.onnx")
    told = paddlewheel("explain", tmp_path / "models", "--svg", tmp_path / "drawn.svg")
    assert told.returncode == 1
    for line in (
        "3 threads, 2 operators beside each other; rows of any length up to 1024 share a run, 16 at most",
        "rows of any length share a run, 16 at most",
        "rows of unequal length: padded rows answer as alone, with 'attention_mask' as mask",
        "rows of unequal length: padded, as parameter paddlewheel.padding says",
        "rows of equal shape share a run, 16 at most",
        "rows of unequal length: equal lengths only, as parameter paddlewheel.padding says",
        "parameter paddlewheel.padding is 'input_ids': write off, or each input as NAME=VALUE",
        "parameter paddlewheel.padding names 'ids'; the inputs are input_ids, token_type_ids, attention_mask",
        " in one process; rows of equal shape share a run, 16 at most",
        "parameter paddlewheel.placement is 'processes': write process, thread or auto",
        "Model proven: its execution accelerator 'openvino' has no effect",
    ):
        assert line in told.stdout, line
    assert told.stdout.count("padded, as parameter paddlewheel.padding says") == 2
    drawn = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "drawn.svg").read_text("utf-8"))
    assert "padded rows answer" in " ".join(drawn)


def test_the_log_says_what_was_proven(service: RepositoryProcess) -> None:
    service.wait_for_log("Models of the repository:")
    assert "Model classifier, rows of unequal length: padded rows answer as alone" in service.log
    assert "Model stubborn, rows of unequal length: padded rows answer otherwise than alone" in service.log
