"""docs/streams.md does what it says: its files and commands, in its order, in an empty folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.followed_documents import Reader, blocks_of
from tests.support.service_process import ROOT

PAGE, CHINESE = (ROOT / "docs" / name for name in ("streams.md", "streams_zh.md"))


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    reader = Reader(tmp_path_factory.mktemp("streams"))
    reader.follow(PAGE)
    yield reader


def test_every_client_gets_the_answers_that_are_shown(reader: Reader) -> None:
    shown = [block.text for block in blocks_of(PAGE) if block.language == "text" and not block.title]
    lines, events, printed, repeated = shown
    assert [answer.body.decode() for answer, _ in reader.answers] == [lines, events, repeated]
    assert reader.printed["python3 count.py"] == printed


def test_both_languages_show_the_same_blocks() -> None:
    assert blocks_of(PAGE) == blocks_of(CHINESE)
