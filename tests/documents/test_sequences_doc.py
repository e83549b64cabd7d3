"""docs/sequences.md does what it says: its files and commands, in its order, in an empty folder."""

from __future__ import annotations

from pathlib import Path

from tests.support.followed_documents import Reader, blocks_of
from tests.support.service_process import ROOT

PAGE, CHINESE = (ROOT / "docs" / name for name in ("sequences.md", "sequences_zh.md"))


def test_each_service_answers_as_shown(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.follow(PAGE)
    assert [answer.status for answer, _ in reader.answers] == [200] * 5
    shown = [(answer.json, shown) for answer, shown in reader.answers if shown is not None]
    assert len(shown) == 2
    for answer, expected in shown:
        assert answer == expected
    (events,) = (block.text for block in blocks_of(PAGE) if block.language == "text" and not block.title)
    assert reader.answers[2][0].body.decode() == events


def test_both_languages_show_the_same_blocks() -> None:
    assert blocks_of(PAGE) == blocks_of(CHINESE)
