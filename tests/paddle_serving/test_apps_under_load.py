"""Apps of each shape that Paddle Serving's users write, started from their folders and asked by many at once.

Every answer is held against the models run here by themselves.
"""

from __future__ import annotations

import ast
import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from client.pipeline_client import PipelineClient
from pipeline.engines import Predictor, create_predictor
from pipeline.models.serving_model import ServingModel
from tests.support import models
from tests.support.free_ports import free_port
from tests.support.models import local_conf
from tests.support.service_process import APPS, ROOT, ServiceProcess

CLIENTS = 12
ENV = {"PYTHONPATH": f"{ROOT}:{ROOT / 'compat'}"}
WORDS = [chr(ord("a") + n) for n in range(26)]
Ids = Sequence[int]


@pytest.fixture(scope="module")
def new(classifier: ServingModel) -> Predictor:
    return create_predictor(classifier, local_conf())


@pytest.fixture(scope="module")
def old(pdmodel: ServingModel) -> Predictor:
    return create_predictor(pdmodel, local_conf())


@pytest.fixture(scope="module")
def started(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str, Mapping[str, Path], Mapping[str, str]], ServiceProcess]]:
    """Starts an app from a copy of its folder, with a model per Op and its own files beside it."""
    running = []

    def start(app: str, op_models: Mapping[str, Path], files: Mapping[str, str]) -> ServiceProcess:
        folder = tmp_path_factory.mktemp("app") / app
        shutil.copytree(APPS / app, folder)
        for name, text in files.items():
            (folder / name).write_text(text, "utf-8")
        sections = {op: section(model) for op, model in op_models.items()}
        ports = {"http_port": free_port(), "rpc_port": free_port()}
        config = {**ports, "dag": {"is_thread_op": False}, "op": sections}
        (folder / "config.yml").write_text(yaml.safe_dump(config), "utf-8")
        name = "bert" if app == "seed" else app
        running.append(ServiceProcess(folder, config, name=name, env=ENV, folder=folder))
        return running[-1]

    yield start
    for service in running:
        service.close()


def section(model: Path) -> dict[str, Any]:
    conf = {"client_type": "local_predictor", "model_config": str(model), "device_type": 0}
    return {"concurrency": 1, "batch_size": 8, "timeout": -1, "local_service_conf": conf}


def logits(predictor: Predictor, ids: Ids, type_id: int = 0) -> np.ndarray:
    row = np.array([ids], "int64")
    feeds = {
        "input_ids": row,
        "token_type_ids": np.full_like(row, type_id),
        "attention_mask": np.ones_like(row),
    }
    return predictor.run({variable.alias: feeds[variable.alias] for variable in predictor.feeds})["logits"]


def ask_all(service: ServiceProcess, requests: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """The answers to distinct requests, asked by many clients at once, over HTTP and gRPC in turn."""
    clients = itertools.cycle([_http(service), _rpc(service)])
    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(lambda pair: pair[0](pair[1]), zip(clients, requests, strict=False)))


def _http(service: ServiceProcess) -> Callable[[Mapping[str, str]], dict[str, str]]:
    return service.predict


def _rpc(service: ServiceProcess) -> Callable[[Mapping[str, str]], dict[str, str]]:
    def ask(inputs: Mapping[str, str]) -> dict[str, str]:
        with PipelineClient() as client:
            client.connect([f"127.0.0.1:{service.rpc_port}"])
            response = client.predict(feed_dict=dict(inputs), fetch=["any"])
        assert response.err_no == 0, response.err_msg
        return dict(zip(response.key, response.value, strict=True))

    return ask


def get_array(text: str) -> np.ndarray:
    """The array that its repr prints."""
    printed = text.removeprefix("array(").removesuffix(")").partition(", dtype=")[0]
    return np.array(ast.literal_eval(printed.partition("\n      dtype")[0].rstrip(", ")))


def ids_of(number: int) -> list[int]:
    """Distinct ids of 1 to 15 words, none of them 0."""
    random = np.random.default_rng(number)
    return [int(n) for n in random.integers(5, 31, 1 + number % 15)]


VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


def get_error_text(ids: Ids) -> str:
    return " ".join(VOCABULARY[i] for i in ids)


@pytest.fixture(scope="module")
def seed(started: Any, classifier: ServingModel) -> ServiceProcess:
    return started("seed", {"bert": classifier.directory}, {"vocab.txt": "\n".join(VOCABULARY)})


def test_the_seed_application_answers_every_client_with_its_own_prediction(
    seed: ServiceProcess, new: Predictor
) -> None:
    texts = [ids_of(number) for number in range(120)]
    answers = ask_all(seed, [{"0": get_error_text(ids), "1": get_error_text(ids[:1])} for ids in texts])
    for ids, answer in zip(texts, answers, strict=True):
        rows = [logits(new, [2, *row, 3])[0] for row in (ids, ids[:1])]
        np.testing.assert_allclose(get_array(answer["logits"]), rows, atol=1e-5)
        assert answer["length"] == repr(np.array([len(get_error_text(ids)), 1]))


@pytest.mark.parametrize("script", ["http_client.py", "rpc_client.py"])
def test_the_seed_applications_clients_get_the_answers(
    seed: ServiceProcess, new: Predictor, script: str
) -> None:
    folder = Path(f"/proc/{seed.process.pid}/cwd").resolve()
    done = subprocess.run(
        [sys.executable, script],
        cwd=folder,
        env=ENV | {"PYTHONPATH": f"{ROOT}:{ROOT / 'compat'}"},
        input="a b\nc\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for line, ids in zip(done.stdout.splitlines(), ([5, 6], [7]), strict=True):
        if script == "http_client.py":
            answer = json.loads(line)
            outputs = dict(zip(answer["key"], answer["value"], strict=True))
        else:
            outputs = ast.literal_eval(line.removesuffix(" 0"))
        np.testing.assert_allclose(get_array(outputs["logits"]), logits(new, [2, *ids, 3]), atol=1e-5)


def test_the_seed_application_keeps_its_own_log_and_ours_stays_ours(seed: ServiceProcess) -> None:
    own = Path(f"/proc/{seed.process.pid}/cwd/bert.log").read_text("utf-8")
    assert "INFO:bert:tokenizer loaded by instance 0" in own
    assert "is warm" in seed.log, "our workers still log where the service's log is"
    assert "is warm" not in own
    assert "uses numpy.int of NumPy 1" in seed.log + own


def test_two_models_of_the_same_input_are_joined(
    started: Any, new: Predictor, old: Predictor, classifier: ServingModel, pdmodel: ServingModel
) -> None:
    service = started("joined", {"new": classifier.directory, "old": pdmodel.directory}, {})
    inputs = [ids_of(number) for number in range(120)]
    answers = ask_all(service, [{"words": " ".join(map(str, ids))} for ids in inputs])
    for ids, answer in zip(inputs, answers, strict=True):
        expected = (logits(new, ids) + logits(old, ids)) / 2
        np.testing.assert_allclose(np.array(answer["logits"].split(), "float32"), expected[0], atol=1e-5)
        assert answer["label"] == str(expected.argmax())
        assert answer["from"] == "new old"
    refused = service.ask({"words": ""})
    assert (refused["err_no"], refused["err_msg"]) == (50, "no words")


def test_an_op_jumps_until_its_condition_holds(started: Any, model_folder: Path) -> None:
    service = started("jump", {"grow": models.images(model_folder) / "serving_server"}, {})
    starts = [(float(n), n / 2, 1.0) for n in range(1, 101)]
    requests = [
        {"pixels": ",".join(map(str, pixels)), "limit": str(10 * number)}
        for number, pixels in enumerate(starts)
    ]
    answers = ask_all(service, requests)
    counts = set()
    for number, (pixels, answer) in enumerate(zip(starts, answers, strict=True)):
        values, rounds = np.array(pixels), 0
        while rounds == 0 or values.max() < 10 * number:
            values, rounds = values * 2 + np.arange(3), rounds + 1
        np.testing.assert_allclose(get_array(answer["image"]).ravel(), values)
        assert answer["rounds"] == f"array({rounds})"
        counts.add(rounds)
    assert len(counts) > 2


def test_the_imdb_ensemble_averages_two_branches_and_packs_its_own_answers(
    started: Any, new: Predictor, old: Predictor, classifier: ServingModel, pdmodel: ServingModel
) -> None:
    op_models = {"bow": pdmodel.directory, "cnn": classifier.directory}
    service = started("imdb", op_models, {"imdb.vocab": "\n".join(VOCABULARY)})
    inputs = [ids_of(number) for number in range(120)]
    answers = ask_all(service, [{"words": f"{get_error_text(ids)}|1", "colour": "none"} for ids in inputs])
    for ids, answer in zip(inputs, answers, strict=True):
        expected = (logits(old, ids) + logits(new, ids, type_id=1)) / 2
        assert list(answer) == ["prediction"]
        np.testing.assert_allclose(get_array(answer["prediction"]), expected, atol=1e-5)
    refused = service.ask({"words": "|1"})
    assert (refused["err_no"], refused["err_msg"]) == (50, "")  # 60 is in prod_error_code, as it was there
