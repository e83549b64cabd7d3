"""`paddlewheel export triton`: what it writes, served here, answers as the service that it was made of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc as v2_grpc
import tritonclient.http as v2_http
import yaml

from tests.support.command_line import paddlewheel, python, refused
from tests.support.embedding_models import encoder, projected
from tests.support.free_ports import free_port
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import ServiceProcess
from tests.support.text_services import classifier, entity_model, logits_of, served_classifier, softmax

SCRIPT = """
from pathlib import Path

from pipeline import WebService
from pipeline.ops.text_ops import {op}
from pipeline.script import prepare_from_arguments


class Service(WebService):
    def get_pipeline_response(self, read_op):
        return {op}(name="{name}", input_ops=[read_op], **{options!r})


service = Service(name="{name}")
prepare_from_arguments(service, Path(__file__).resolve().parent / "config.yml")
service.run_service()
"""
LABELS = ("体育", "财经", "科技")
WORDS = {"王": "B-PER", "小": "I-PER", "北": "B-LOC", "京": "I-LOC", "wash": "B-LOC", "##ington": "B-LOC"}
LONG = "国足客场两球取胜，央行宣布下调存款准备金率。" * 4
Texts = Mapping[str, list[str]]


class Case(NamedTuple):
    """A service, and requests that both are asked: texts by input, and parameters."""

    op: str
    options: Mapping[str, Any]
    model: Callable[[Path], Path]
    requests: list[tuple[Texts, Mapping[str, Any]]]


CASES = {
    "news": Case(
        "ClassificationOp",
        {"top_k": 2, "too_long": "windows", "max_tokens": 24},
        lambda folder: served_classifier(folder, LABELS),
        [
            ({"text": ["国足客场两球取胜", "央行", LONG, "a"]}, {}),
            ({"text": [LONG]}, {"top_k": 1, "threshold": 0.9}),
            ({"text": ["国足"]}, {"top_k": 3}),
        ],
    ),
    "pairs": Case(
        "ClassificationOp",
        {"task": "multi-label", "pair": True, "threshold": 0.3, "too_long": "truncate", "max_tokens": 24},
        lambda folder: served_classifier(folder, LABELS),
        [
            ({"text": ["国足客场", LONG, "a"], "text_pair": ["取胜", "央行宣布", LONG]}, {}),
            ({"text": ["国足"], "text_pair": ["央行"]}, {"threshold": 0.1, "top_k": 1}),
        ],
    ),
    "places": Case(
        "LabellingOp",
        {"too_long": "windows", "max_tokens": 8},
        lambda folder: entity_model(folder, ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"), WORDS),
        [
            ({"text": ["王小在北京", "in Washington", "  北 京  ", "没有"]}, {}),
            ({"text": ["🚀王小王北京" * 3, "\u200d"]}, {}),
            ({"text": ["王小在北京"]}, {"threshold": 0.99}),
        ],
    ),
    "vectors": Case(
        "EmbeddingOp",
        {},
        lambda folder: encoder(folder / "model", {"kind": "embedding"}),
        [
            ({"text": ["w1 w2 w3", "w7", "国 足 客 场 取 胜"]}, {}),
            ({"text": ["w1", "w2 w3"]}, {"dimensions": 2, "normalize": False}),
        ],
    ),
    "projected": Case(
        "EmbeddingOp",
        {"too_long": "windows", "max_tokens": 8},
        lambda folder: projected(folder / "model"),
        [
            ({"text": ["w1 w2 w3", "w7", "w1 w2 w3 w4 w5 w6"]}, {}),
            ({"text": ["w1 W2 w3"]}, {"prompt_name": "passage", "normalize": False}),
            ({"text": ["w1 w2 w3"]}, {"prompt_name": ""}),
        ],
    ),
}


def write_service(folder: Path, name: str, op: str, options: Mapping[str, Any], model: Path) -> Path:
    """A folder as those in services/."""
    folder.mkdir(parents=True, exist_ok=True)
    script = SCRIPT.format(name=name, op=op, options=dict(options))
    (folder / "web_service.py").write_text(script, "utf-8")
    local = {"engine": "onnxruntime", "client_type": "local_predictor", "model_config": str(model)}
    section = {"concurrency": 1, "local_service_conf": {**local, "thread_num": 1}}
    config = {"http_port": free_port(), "rpc_port": free_port(), "op": {name: section}}
    (folder / "config.yml").write_text(yaml.safe_dump(config), "utf-8")
    return folder


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("services")
    return {
        name: write_service(root / name, name, case.op, case.options, case.model(root / f"{name}-model"))
        for name, case in CASES.items()
    }


@pytest.fixture(scope="module")
def exported(services: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("exported") / "models"
    for folder in services.values():
        done = paddlewheel("export", "triton", "--service", folder, "--output", repository)
        assert done.returncode == 0, done
    model = classifier(repository.parent, LABELS)
    done = python("-m", "convert", "all", model, repository, "--format", "triton", "--lengths", "5,9")
    assert done.returncode == 0, done
    return repository


@pytest.fixture(scope="module")
def repository(exported: Path) -> Iterator[RepositoryProcess]:
    with RepositoryProcess(exported) as process:
        yield process


@pytest.fixture(scope="module", params=CASES)
def service(request: pytest.FixtureRequest, services: dict[str, Path]) -> Iterator[ServiceProcess]:
    folder = services[request.param]
    config = yaml.safe_load((folder / "config.yml").read_text("utf-8"))
    with ServiceProcess(folder, config, name=request.param, arguments=("--config", "{config}")) as process:
        yield process


def ask(v2: Any, address: str, model: str, texts: Texts, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The answer by one of tritonclient's modules."""
    inputs = [v2.InferInput(name, [len(many)], "BYTES") for name, many in texts.items()]
    for one, many in zip(inputs, texts.values(), strict=True):
        one.set_data_from_numpy(np.array([text.encode() for text in many], object))
    with v2.InferenceServerClient(address) as client:
        answer = client.infer(model, inputs, parameters=dict(parameters))
        told = answer.get_response()
        names = [one["name"] for one in told["outputs"]] if isinstance(told, dict) else names_of(told)
        return {name: answer.as_numpy(name) for name in names}


def names_of(response: Any) -> list[str]:
    return [one.name for one in response.outputs]


def test_answers_are_those_of_the_service(repository: RepositoryProcess, service: ServiceProcess) -> None:
    name = service.name
    for texts, parameters in CASES[name].requests:
        expected = ask(v2_http, f"127.0.0.1:{service.http_port}", name, texts, parameters)
        for v2, address in (
            (v2_http, f"127.0.0.1:{repository.http_port}"),
            (v2_grpc, repository.rpc_address),
        ):
            answer = ask(v2, address, name, texts, parameters)
            if "entity" in answer:  # an ensemble can't call it as its input
                answer["text"] = answer.pop("entity")
            assert answer.keys() == expected.keys()
            for output, array in expected.items():
                assert answer[output].dtype == array.dtype
                if array.dtype == np.float32:
                    np.testing.assert_allclose(answer[output], array, atol=1e-5)
                else:
                    np.testing.assert_array_equal(answer[output], array)


def test_convert_all_writes_a_repository_of_a_model(exported: Path, repository: RepositoryProcess) -> None:
    text = "国足客场两球取胜"
    answer = ask(v2_grpc, repository.rpc_address, "classifier", {"text": [text]}, {})
    (expected,) = softmax(logits_of(exported.parent / "classifier", [text]))
    assert answer["label"].tolist() == [LABELS[expected.argmax()].encode()]
    np.testing.assert_allclose(answer["score"], [expected.max()], atol=1e-5)


def test_a_model_without_an_onnx_form_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    shutil.copytree("models/demo", tmp_path / "demo", ignore=shutil.ignore_patterns("variants"))
    told = refused(
        paddlewheel("export", "triton", "--model", tmp_path / "demo", "--output", tmp_path / "out")
    )
    assert (
        "has no ONNX form" in told
        and "paddlewheel convert to-onnx" in told
        and "--onnx OUT/model.onnx" in told
    )


def test_explain_finds_nothing_that_can_not_be_served(exported: Path) -> None:
    told = paddlewheel("explain", exported)
    assert told.returncode == 0, told
    assert "rows of any length share a run" in told.stdout


@pytest.mark.parametrize(
    ("texts", "parameters", "message"),
    [
        (["国足", ""], {}, "text 1 of 'text' is empty"),
        (["国足"], {"top_k": 0}, "'top_k' is 0: send a whole number from 1 to 1000"),
        (["国足"] * 65, {}, "the request comes to 65 rows for the model, 64 are allowed"),
    ],
)
def test_mistakes_are_refused_with_their_place(
    repository: RepositoryProcess, texts: list[str], parameters: Mapping[str, Any], message: str
) -> None:
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}]}
    answer = repository.http("/v2/models/news/infer", json.dumps({**body, "parameters": parameters}))
    assert (answer.status, message in answer.json["error"]) == (400, True), answer


def test_python_models_need_numpy_and_tokenizers_alone(exported: Path) -> None:
    for path in exported.glob("*/1/model.py"):
        lines = path.read_text("utf-8").splitlines()
        roots = {line.split()[1].partition(".")[0] for line in lines if line.startswith(("import ", "from "))}
        assert "pipeline" not in roots
        assert roots & {"tokenizers"} == ({"tokenizers"} if "_tokenizer" in str(path) else set())


def test_a_model_is_exported_as_its_files_describe_it(tmp_path: Path) -> None:
    command = ("export", "triton", "--model", classifier(tmp_path, LABELS), "--output", tmp_path / "out")
    done = paddlewheel(*command)
    assert done.returncode == 0, done
    labels = json.loads((tmp_path / "out/classifier_postprocess/1/labels.json").read_text("utf-8"))
    assert labels == list(LABELS)
    again = refused(paddlewheel(*command))
    assert "there already" in again and "--force" in again


def test_what_can_not_be_exported_is_told_with_the_reason(tmp_path: Path) -> None:
    nli = classifier(tmp_path, ("contradiction", "neutral", "entailment"))
    folder = write_service(tmp_path / "zero_shot", "zero_shot", "ZeroShotOp", {}, nli)
    told = refused(paddlewheel("export", "triton", "--service", folder, "--output", tmp_path / "out"))
    assert "zero-shot can't be exported: its labels come with each request" in told
    assert not (tmp_path / "out").exists()
