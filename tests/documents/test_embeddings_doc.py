"""docs/embeddings.md does what it says: its files and commands, in its order, in an empty folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.followed_documents import Reader, blocks_of
from tests.support.service_process import ROOT

PAGE, CHINESE = (ROOT / "docs" / name for name in ("embeddings.md", "embeddings_zh.md"))


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    reader = Reader(tmp_path_factory.mktemp("embeddings"))
    reader.follow(PAGE)
    yield reader


def test_the_vectors_and_ranks_are_those_that_are_shown(reader: Reader) -> None:
    (vectors, shown), (ranks, shown_ranks) = reader.answers
    told = vectors.json
    assert {**told, "data": []} == {**shown, "data": []}
    for one, expected in zip(told["data"], shown["data"], strict=True):
        assert one["embedding"] == pytest.approx(expected["embedding"], abs=1e-3)
    assert [one["index"] for one in ranks.json] == [one["index"] for one in shown_ranks]
    for one, expected in zip(ranks.json, shown_ranks, strict=True):
        assert one["score"] == pytest.approx(expected["score"], abs=1e-3)


def test_the_clients_print_vectors_and_similarities(reader: Reader) -> None:
    assert reader.printed["python3 ask.py"] == "0 [1.0, 0.0]\n1 [0.0, 1.0]\n"
    shape, alike = reader.printed["python3 ask_tei.py"].splitlines()
    assert shape == "(1, 3)"
    dog, truck = (float(number) for number in alike.strip("[]").split(","))
    assert dog > 0.9 > 0.1 > truck


def test_both_languages_show_the_same_blocks() -> None:
    assert blocks_of(PAGE) == blocks_of(CHINESE)
