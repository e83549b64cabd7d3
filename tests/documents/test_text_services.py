"""services/: each folder starts with the model that its train.py makes, and is asked as its README says, over
every endpoint; where there is none, with another one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from convert.demo.headlines import read_headlines
from tests.support.command_line import paddlewheel
from tests.support.curl_commands import run_curl
from tests.support.followed_documents import Block, blocks_of
from tests.support.free_ports import free_port
from tests.support.service_process import ROOT, ServiceProcess
from tests.support.text_services import classifier

pytestmark = pytest.mark.timeout(900)  # models are trained, beside the other tests
SERVICES = ("text_classification", "news_classification", "sequence_labelling", "zero_shot")
MAX_SCRIPT_LENGTH = 20
CLASSES = ("体育", "财经", "科技")
# What a reader finds in sentences that no model has seen.
ENTITIES = {
    "王小明去北京": [("王小明", "PER", 0, 3), ("北京", "LOC", 4, 6)],
    "张伟昨天在杭州见了李梅": [("张伟", "PER", 0, 2), ("杭州", "LOC", 5, 7), ("李梅", "PER", 9, 11)],
    "今天天气很好": [],
}
TOPICS = {
    "国足客场两球取胜": "体育",
    "央行宣布下调存款准备金率": "财经",
    "小麦进入收割季，农机手忙着下田": "农业",
    "这款手游上线首日玩家过百万": "游戏",
}


def model_of(folder: Path, data: Path) -> Path:
    """The model that train.py makes in a copy of the folder; one of no meaning where there is none."""
    if not (folder / "train.py").exists():
        return classifier(folder / "models", CLASSES)
    options = ["--data", str(data), "--epochs", "1"] if folder.name == "news_classification" else []
    command = [sys.executable, str(folder / "train.py"), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "model"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's headlines in files as those of TNEWS."""
    folder = tmp_path_factory.mktemp("data")
    rows = [{"label_desc": f"news_{one.label}", "sentence": one.text} for one in read_headlines()]
    for name, own in (("train", rows[::3]), ("test", rows[1::9])):
        lines = (json.dumps(row, ensure_ascii=False) for row in own)
        (folder / f"{name}.json").write_text("\n".join(lines), "utf-8")
    return folder


@pytest.fixture(scope="module", params=SERVICES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A copy of the folder, with a model of its own that is run at once."""
    name = request.param
    folder = tmp_path_factory.mktemp(name) / name
    shutil.copytree(ROOT / "services" / name, folder, ignore=shutil.ignore_patterns("model"))
    ports = {"http_port": free_port(), "rpc_port": free_port()}
    config = yaml.safe_load((folder / "config.yml").read_text("utf-8")) | ports
    config["op"][name] |= {"batch_size": 8}
    model = model_of(folder, data)
    engine = "onnxruntime" if next(model.glob("*.onnx"), None) else "paddle"
    config["op"][name]["local_service_conf"] |= {"engine": engine, "model_config": str(model)}
    (folder / "config.yml").write_text(yaml.safe_dump(config), "utf-8")
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[ServiceProcess]:
    config = yaml.safe_load((folder / "config.yml").read_text("utf-8"))
    with ServiceProcess(folder, config, name=folder.name) as process:
        yield process


def finds_classes(service: ServiceProcess, _folder: Path, _data: Path) -> None:
    (row,) = predictions(service, ["国足客场两球取胜"])
    assert row["label"] == row["labels"][0] and set(row["labels"]) == set(CLASSES)


def finds_entities(service: ServiceProcess, _folder: Path, _data: Path) -> None:
    for row, expected in zip(predictions(service, list(ENTITIES)), ENTITIES.values(), strict=True):
        found = [(one["text"], one["label"], one["start"], one["end"]) for one in row["entities"]]
        assert found == expected


def finds_topics(service: ServiceProcess, _folder: Path, _data: Path) -> None:
    labels = list(dict.fromkeys(TOPICS.values()))
    rows = predictions(service, list(TOPICS), labels=labels, template="这是关于{}的新闻。")
    assert [row["label"] for row in rows] == list(TOPICS.values())


def is_as_accurate_as_in_training(service: ServiceProcess, folder: Path, data: Path) -> None:
    told = json.loads((folder / "model" / "accuracy.json").read_text("utf-8"))
    names = ["--gold", "label_desc", "--prefix", "news_", "--key", "text=sentence"]
    done = paddlewheel("evaluate", data / "test.json", *names, "--service", service.url)
    assert done.stdout.splitlines()[-1] == f"acc: {told['accuracy']:.4f}", done
    assert 0 < told["linear"] < 1


CHECKS = {
    "text_classification": finds_classes,
    "news_classification": is_as_accurate_as_in_training,
    "sequence_labelling": finds_entities,
    "zero_shot": finds_topics,
}


def predictions(service: ServiceProcess, texts: list[str], **parameters: Any) -> list[dict[str, Any]]:
    body = {"instances": [{"text": text} for text in texts], "parameters": parameters}
    answer = service.http(f"/v1/models/{service.name}:predict", json.dumps(body))
    assert answer.status == 200, answer
    rows: list[dict[str, Any]] = answer.json["predictions"]
    return rows


def test_its_model_answers_as_a_reader_would(service: ServiceProcess, folder: Path, data: Path) -> None:
    CHECKS[service.name](service, folder, data)


def blocks(name: str, language: str) -> list[Block]:
    return [
        block for block in blocks_of(ROOT / "services" / name / "README.md") if block.language == language
    ]


def test_each_request_of_the_page_is_answered_alike(service: ServiceProcess) -> None:
    asked = [line for block in blocks(service.name, "sh") for line in block.text.splitlines()]
    answers = [run_curl(line, service, ROOT) for line in asked if line.startswith("curl")]
    assert [answer.status for answer in answers] == [200] * 3, answers
    (told,), key_values = answers[0].json["predictions"], answers[2].json
    best = told["entities"][0]["text"] if "entities" in told else told["label"]
    assert best in answers[1].body.decode()
    assert best in "".join(key_values["value"])


def test_the_program_of_the_page_prints_an_answer(service: ServiceProcess) -> None:
    (program,) = blocks(service.name, "python")
    text = program.text.replace("127.0.0.1:8088", service.rpc_address)
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "label" in done.stdout


@pytest.mark.parametrize("name", SERVICES)
def test_its_script_is_short_and_both_languages_show_the_same(name: str) -> None:
    folder = ROOT / "services" / name
    assert len((folder / "web_service.py").read_text("utf-8").splitlines()) <= MAX_SCRIPT_LENGTH
    assert blocks_of(folder / "README.md") == blocks_of(folder / "README_zh.md")
