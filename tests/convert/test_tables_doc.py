"""docs/tables.md does what it says: its files and commands, in its order, in an empty folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from convert.steps.conversion_environment import FOLDER
from tests.support.followed_documents import Reader, blocks_of
from tests.support.service_process import ROOT

PAGE, CHINESE = (ROOT / "docs" / name for name in ("tables.md", "tables_zh.md"))


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("tables")
    (folder / FOLDER.name).symlink_to(FOLDER)
    reader = Reader(folder)
    reader.follow(PAGE)
    yield reader


def test_every_request_is_answered_as_it_shows(reader: Reader) -> None:
    assert len(reader.answers) == 2
    for answer, shown in reader.answers:
        assert answer.status == 200, answer
        told, expected = answer.json["predictions"], shown["predictions"]
        assert [row["label"] for row in told] == [row["label"] for row in expected]
        assert [row["score"] for row in told] == pytest.approx([row["score"] for row in expected], abs=2e-3)


def test_both_languages_show_the_same_blocks() -> None:
    assert blocks_of(PAGE) == blocks_of(CHINESE)


def test_the_pickle_does_not_go_along(reader: Reader) -> None:
    assert not list((reader.folder / "model").rglob("*.joblib"))
