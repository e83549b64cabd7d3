"""The service of this repository: the demo's BERT behind both endpoints, as its README asks it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as v2
import yaml
from tokenizers import BertWordPieceTokenizer
from tritonclient.utils import InferenceServerException

from client.protos.pipeline_service_pb2 import Response
from pipeline.config.config_file import LocalServiceConf
from pipeline.engines import create_predictor
from pipeline.models.serving_model import load_serving_model
from tests.support.service_process import ServiceProcess, key_value

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "demo"
TEXTS = [
    "国足客场两球取胜，提前一轮出线",
    "央行宣布下调存款准备金率",
    "A",
    "这款SUV油耗低，空间大，车主都说值" * 20,
]


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    config = yaml.safe_load((ROOT / "config.yml").read_text())
    config["op"]["bert"]["concurrency"] = 1
    script = ROOT / "web_service.py"
    arguments = ["--config", "{config}"]
    with ServiceProcess(script, config, name="bert", arguments=arguments, folder=ROOT) as process:
        yield process


def test_texts_are_a_tensor_of_kserve_v2(service: ServiceProcess) -> None:
    with v2.InferenceServerClient(f"127.0.0.1:{service.rpc_port}") as asking:
        metadata = asking.get_model_metadata("bert", as_json=True)
        assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": ["-1"]}]
        text = v2.InferInput("text", [2], "BYTES")
        text.set_data_from_numpy(np.array([each.encode() for each in TEXTS[:2]], object))
        result = asking.infer("bert", [text])
        by_key_value = service.predict(numbered(*TEXTS[:2]))
        assert values(by_key_value["label"]) == [label.decode() for label in result.as_numpy("label")]
        assert values(by_key_value["label_id"]) == result.as_numpy("label_id").tolist()
        assert result.as_numpy("confidence").dtype == np.float32


@pytest.mark.parametrize(
    ("elements", "told"),
    [
        ([], "the tensor 'text' has no elements"),
        ([b"x", b"\xff"], "element 1 of 'text' is no UTF-8"),
        ([b"x", b" "], "element 1 of 'text' is empty"),
        ([b"a" * 20_000], "element 0 of 'text' has 20000 characters, 10240 are allowed"),
    ],
)
def test_a_tensor_that_holds_no_headline_is_refused(
    service: ServiceProcess, elements: list[bytes], told: str
) -> None:
    with v2.InferenceServerClient(f"127.0.0.1:{service.rpc_port}") as asking:
        text = v2.InferInput("text", [len(elements)], "BYTES")
        text.set_data_from_numpy(np.array(elements, object))
        with pytest.raises(InferenceServerException) as caught:
            asking.infer("bert", [text])
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
        assert caught.value.message().startswith(told)


def test_the_bare_model_has_a_name_beside_the_service_s(service: ServiceProcess) -> None:
    with v2.InferenceServerClient(f"127.0.0.1:{service.rpc_port}") as asking:
        told = [model.name for model in asking.get_model_repository_index().models]
        assert told == ["bert", "bert_model"]
        given = [
            v2.InferInput(name, [1, 3], "INT64") for name in ("input_ids", "token_type_ids", "attention_mask")
        ]
        for one, ids in zip(given, ([[101, 7, 102]], [[0, 0, 0]], [[1, 1, 1]]), strict=True):
            one.set_data_from_numpy(np.array(ids))
        wanted = v2.InferRequestedOutput("logits", class_count=2)
        logits = asking.infer("bert_model", given).as_numpy("logits")
        classes = asking.infer("bert_model", given, outputs=[wanted]).as_numpy("logits")
        best = logits[0].argmax()
        label = load_serving_model(MODEL).labels[best]
        assert classes.shape == (1, 2) and classes[0, 0].decode() == f"{logits[0, best]:f}:{best}:{label}"


def numbered(*texts: str) -> dict[str, str]:
    return {str(number): text for number, text in enumerate(texts)}


def logits_of(text: str) -> np.ndarray:
    """What the predictor says of one text, without any service."""
    tokenizer = BertWordPieceTokenizer(str(MODEL / "serving_server" / "vocab.txt"), lowercase=True)
    ids = np.array([tokenizer.encode(text).ids])
    conf = LocalServiceConf(model_dir=str(MODEL), device_type=0, thread_num=1)
    predictor = create_predictor(load_serving_model(MODEL), conf)
    feed = {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": np.ones_like(ids)}
    return predictor.run(feed)["logits"][0]


def values(text: str) -> list[object]:
    """The elements of an array as the answer prints it."""
    listed = re.match(r"array\((\[.*?\])", text, re.DOTALL)
    assert listed is not None, text
    return list(ast.literal_eval(listed[1]))


def test_a_headline_is_answered_with_label_id_and_confidence(service: ServiceProcess) -> None:
    answer = service.predict(numbered(TEXTS[0]))
    assert list(answer) == ["label", "label_id", "confidence"]
    labels = load_serving_model(MODEL).labels
    assert values(answer["label"]) == [labels[int(str(values(answer["label_id"])[0]))]] == ["sports"]


def test_many_texts_are_answered_in_order_as_the_predictor_answers_each_alone(
    service: ServiceProcess,
) -> None:
    answer = service.predict(numbered(*TEXTS))
    logits = np.stack([logits_of(text) for text in TEXTS])
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    assert values(answer["label_id"]) == logits.argmax(axis=1).tolist()
    np.testing.assert_allclose(np.array(values(answer["confidence"]), float), shares.max(axis=1), atol=1e-5)


def test_both_endpoints_give_one_answer(service: ServiceProcess) -> None:
    over_http = service.predict(numbered(*TEXTS))
    over_rpc: Response = service.rpc(numbered(*TEXTS))
    assert dict(zip(over_rpc.key, over_rpc.value, strict=True)) == over_http


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ({"0": ""}, "key '0' is empty"),
        ({"0": "好", "1": " \n"}, "key '1' is empty"),
        ({"words": "好"}, "key '0' is missing"),
        ({"0": "好", "2": "坏"}, "key '1' is missing"),
        ({"0": "好" * 600}, "602 tokens, the model reads 512"),
        ({"0": "a" * 20_000}, "20000 characters, 10240 are allowed"),
    ],
)
def test_what_is_no_headline_is_refused_with_the_field_and_a_valid_message(
    service: ServiceProcess, inputs: dict[str, str], named: str
) -> None:
    answer = service.http("/bert/prediction", key_value(inputs))
    assert (answer.status, answer.json["err_no"]) == (400, 5000)
    over_rpc: Response = service.rpc(inputs)
    for message in (answer.json["err_msg"], over_rpc.err_msg):
        assert named in message
        example = json.loads(message[message.index("{") :])
        assert service.http("/bert/prediction", json.dumps(example).encode()).json["err_no"] == 0
    assert over_rpc.err_no == 5000


def test_no_texts_at_all_are_refused(service: ServiceProcess) -> None:
    answer = service.http("/bert/prediction", b'{"key": [], "value": []}')
    assert (answer.status, answer.json["err_no"]) == (400, 5000)
    assert "no texts" in answer.json["err_msg"]
    assert service.rpc({}).err_no == 8000  # such a message has neither key nor value


def test_a_tensor_is_no_text(service: ServiceProcess) -> None:
    tensor = {"name": "0", "elem_type": 0, "int64_data": [1, 2], "shape": [2]}
    answer = service.http("/bert/prediction", json.dumps({"tensors": [tensor]}).encode())
    assert (answer.status, answer.json["err_no"]) == (400, 5000)
    assert "no text but ndarray" in answer.json["err_msg"]


def test_print_config_prints_what_load_config_reads_and_leaves() -> None:
    command = [sys.executable, "web_service.py", "--print-config"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    config = yaml.safe_load(printed.stdout)
    assert (config["http_port"], config["rpc_port"]) == (18082, 8088)
    assert config["op"]["bert"]["concurrency"] == 2
