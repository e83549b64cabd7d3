"""docs/images.md does what it says: its files and commands, in its order, in an empty folder."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from pipeline.models.serving_model import load_serving_model
from tests.support.followed_documents import Reader, blocks_of
from tests.support.service_process import ROOT

PAGE, CHINESE = (ROOT / "docs" / name for name in ("images.md", "images_zh.md"))


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    reader = Reader(tmp_path_factory.mktemp("images"))
    reader.follow(PAGE)
    yield reader


def test_the_photo_has_the_label_and_the_scores_that_are_shown(reader: Reader) -> None:
    ((answer, shown),) = reader.answers
    (told,), (expected,) = answer.json["predictions"], shown["predictions"]
    assert (told["label"], told["labels"]) == (expected["label"], expected["labels"])
    assert told["scores"] == pytest.approx(expected["scores"], abs=1e-3)
    assert told["score"] == pytest.approx(expected["score"], abs=1e-3)


def test_several_photos_in_one_request_are_answered_in_order(reader: Reader) -> None:
    assert reader.printed["python3 ask.py"] == "green\nblue\n"


def test_the_command_prints_the_next_two(reader: Reader) -> None:
    (printed,) = (text for command, text in reader.printed.items() if "new painter" in command)
    assert "  python3 painter/web_service.py\n" in printed
    assert "--data-binary @painter/example.png" in printed


def test_a_model_for_one_image_takes_any_number_with_rebatch(reader: Reader) -> None:
    model = load_serving_model(reader.folder / "free")
    assert (model.engine, model.feeds[0].shape[0]) == ("onnxruntime", -1)
    reports = json.loads((model.directory / "parity.json").read_text("utf-8"))
    assert "any number of rows" in [report["step"] for report in reports]


def test_both_languages_show_the_same_blocks() -> None:
    assert blocks_of(PAGE) == blocks_of(CHINESE)
