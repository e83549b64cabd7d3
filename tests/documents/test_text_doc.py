"""docs/text.md does what it says: its files and commands, in its order, in an empty folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.followed_documents import Reader, blocks_of
from tests.support.service_process import ROOT

PAGE, CHINESE = (ROOT / "docs" / name for name in ("text.md", "text_zh.md"))


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    reader = Reader(tmp_path_factory.mktemp("texts"))
    reader.follow(PAGE)
    yield reader


def rounded(value: Any) -> Any:
    """Numbers as the page shows them: four digits."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 4) if isinstance(value, float) else value


def test_every_answer_is_the_one_that_is_shown(reader: Reader) -> None:
    topics, places, key_value, mentions = reader.answers
    for answer, shown in (topics, places, mentions):
        assert rounded(answer.json) == shown
    answer, shown = key_value
    assert answer.json["key"] == shown["key"]
    assert rounded(json.loads(answer.json["value"][0])) == rounded(json.loads(shown["value"][0]))


def test_both_languages_show_the_same_blocks() -> None:
    assert blocks_of(PAGE) == blocks_of(CHINESE)
