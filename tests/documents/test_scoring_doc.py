"""docs/scoring.md does what it says: its files and commands, in its order, in an empty folder."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.followed_documents import Reader, blocks_of
from tests.support.service_process import ROOT

PAGE, CHINESE = (ROOT / "docs" / name for name in ("scoring.md", "scoring_zh.md"))


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    reader = Reader(tmp_path_factory.mktemp("scoring"))
    reader.follow(PAGE)
    yield reader


def test_rows_have_their_answers_from_the_model_and_from_the_service(reader: Reader) -> None:
    scored, served = (
        [json.loads(line) for line in (reader.folder / name).read_text("utf-8").splitlines()]
        for name in ("scored.jsonl", "served.jsonl")
    )
    assert [row["answer"]["label"] for row in scored] == ["sports", "finance", "sports", "sports"]
    assert json.loads(reader.printed["head -1 scored.jsonl"]) == scored[0]
    for one, other in zip(scored, served, strict=True):
        score, own = one["answer"].pop("score"), other["answer"].pop("score")
        assert one == other and score == pytest.approx(own, abs=1e-5)


def test_the_evaluation_is_the_one_that_is_shown(reader: Reader) -> None:
    (shown,) = (block.text for block in blocks_of(PAGE) if block.text.startswith("written: "))
    printed = reader.printed["paddlewheel evaluate scored.jsonl --gold topic --report report"]
    assert printed == shown
    asked = reader.printed["paddlewheel evaluate rows.jsonl --gold topic --service localhost:18082"]
    assert asked.endswith(shown[shown.index("macro f1") :]) and "p99 " in asked


def test_both_languages_show_the_same_blocks() -> None:
    assert blocks_of(PAGE) == blocks_of(CHINESE)
