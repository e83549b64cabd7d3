"""`paddlewheel text`: what it finds in a model's files, and what it asks for in one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import onnx_models
from tests.support.command_line import paddlewheel, refused
from tests.support.embedding_models import encoder
from tests.support.service_process import ROOT
from tests.support.text_services import NLI, TextProcess, classifier, entity_model

DEMO = ROOT / "models" / "demo"
ENTITIES = ("O", "B-A", "I-A")


def test_a_model_as_convert_leaves_it_is_served_at_once() -> None:
    with TextProcess(DEMO, "--engine", "paddle", name="news") as service:
        row, *_ = service.rows("国足客场两球取胜，提前一轮出线", "央行宣布下调存款准备金率", top_k=3)
        assert row["label"] == row["labels"][0] == "sports" and len(row["scores"]) == 3
        assert "news: classification, 15 classes (story, culture" in service.log
        assert "/v1/models/news:predict" in service.log


def test_the_help_shows_examples() -> None:
    done = paddlewheel("text", "--help")
    assert done.returncode == 0
    assert "\n  paddlewheel text models/ernie-news\n" in done.stdout
    for option in ("--task", "--labels", "--tokenizer", "--too-long", "--http-port", "--rpc-port"):
        assert option in done.stdout


LABEL_FILES = {
    "label_vocab.txt": "O\nB-A\nI-A\n",
    "label_list.txt": "O\r\nB-A\r\nI-A",
    "tag.dic": "0\tO\n2\tI-A\n1\tB-A\n",
    "label_map.json": '{"O": 0, "B-A": 1, "I-A": 2}',
    "id2label.json": '{"0": "O", "1": "B-A", "2": "I-A"}',
}


@pytest.mark.parametrize("name", LABEL_FILES)
def test_names_of_classes_in_the_files_that_people_have(tmp_path: Path, name: str) -> None:
    model = onnx_models.bare(tmp_path, "tags")
    (model / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n", "utf-8")
    (model / name).write_bytes(LABEL_FILES[name].encode())
    assert "labelling, 3 classes (O, B-A, I-A)" in told(model)


def told(model: Path, *options: str) -> str:
    """What the command prints of the service, which then finds its port taken."""
    with TextProcess(model, *options, wait=False) as service:
        service.wait_for_log("Once it is ready")
        return service.log


@pytest.mark.parametrize(
    ("labels", "config", "task"),
    [
        (("a", "b", "c"), {}, "classification"),
        (("a", "b", "c"), {"problem_type": "multi_label_classification"}, "multi-label"),
        (NLI, {}, "zero-shot"),
        ((), {}, "classification"),
    ],
)
def test_the_task_is_told_by_config_json(
    tmp_path: Path, labels: tuple[str, ...], config: dict[str, str], task: str
) -> None:
    assert f": {task}, {len(labels)} classes" in told(classifier(tmp_path, labels, **config))


def without(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).unlink()


def written(name: str, text: str) -> Callable[[Path], None]:
    def write(model: Path) -> None:
        (model / name).write_text(text, "utf-8")

    return write


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (without("vocab.txt"), (), "has no tokenizer.json or vocab.txt or sentencepiece.bpe.model"),
        (without("config.json"), (), "say --task classification, multi-label, labelling, zero-shot"),
        (without("config.json"), ("--task", "classification"), "give --labels A,B or a file"),
        (written("config.json", "{"), (), "config.json can't be read as JSON"),
        (lambda model: None, ("--task", "labelling"), "--task labelling needs scores [N, tokens, classes]"),
        (lambda model: None, ("--labels", "a,b"), "there are 2 labels, and the model gives 3 scores"),
        (lambda model: None, ("--task", "zero-shot"), "none of the labels x, y, z is entailment"),
        (lambda model: None, ("--template", "{}"), "--template goes with the task zero-shot"),
        (lambda model: None, ("--tokenizer", "nothing.json"), "nothing.json"),
        (
            written("tokenizer_config.json", '{"tokenizer_class": "BertJapaneseTokenizer"}'),
            (),
            "BertJapanese",
        ),
        (lambda model: None, ("--name", "v2"), "v2"),
    ],
)
def test_what_is_not_known_is_asked_for_in_one_sentence(
    tmp_path: Path, change: Callable[[Path], None], options: tuple[str, ...], said: str
) -> None:
    model = classifier(tmp_path, ("x", "y", "z"))
    change(model)
    assert said in refused(paddlewheel("text", model, *options))


def test_a_label_file_shorter_than_the_scores_is_refused(tmp_path: Path) -> None:
    model = onnx_models.bare(tmp_path, "tags")
    (model / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n", "utf-8")
    (model / "label_list.txt").write_text("O\nB-A\n", "utf-8")
    refusal = refused(paddlewheel("text", model, "--task", "labelling"))
    assert "there are 2 labels, and the model gives 3 scores" in refusal


def test_labels_that_do_not_tell_places_as_the_scheme_does_are_refused(tmp_path: Path) -> None:
    model = entity_model(tmp_path, ("O", "name", "place"), {})
    assert "choose another `scheme`" in refused(paddlewheel("text", model, "--scheme", "bio"))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "nothing is not there: check the path" in refused(paddlewheel("text", tmp_path / "nothing"))


def test_files_in_the_folder_around_the_model_are_found(tmp_path: Path) -> None:
    model = classifier(tmp_path, ("x", "y", "z"))
    inner = model / "onnx"
    inner.mkdir()
    shutil.move(model / "model.onnx", inner / "model.onnx")
    with TextProcess(model) as service:
        assert service.rows("国足")[0]["label"] in ("x", "y", "z")
        answer = service.http("/openapi.json")
        assert json.loads(answer.body)


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({"max_position_embeddings": 20}, 20),
        ({"max_position_embeddings": 24, "model_type": "xlm-roberta", "pad_token_id": 1}, 22),
    ],
)
def test_a_text_beyond_the_positions_of_config_json_is_refused(
    tmp_path: Path, config: dict[str, object], longest: int
) -> None:
    with TextProcess(classifier(tmp_path, ("x", "y", "z"), **config)) as service:
        assert f"the model reads {longest}:" in service.rows("国" * (longest - 1), status=400)
        assert service.rows("国" * (longest - 2))


def test_an_embedding_service_shows_a_request_of_openai_and_no_classes(tmp_path: Path) -> None:
    log = told(encoder(tmp_path / "finder", {"kind": "embedding"}))
    assert "texts: embeddings. Once it is ready" in log
    assert """/v1/embeddings -d '{"model": "texts", "input": ["text"]}'""" in log
