"""The words that `python -m tests.wording` counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wording import RULES, Counts

BAD = '''"""Those of a request."""

def size_of(given):
    """Return a size. The batch ends; who waits here is late."""
    one = given
    return one

def take():
    """%s."""
'''
GOOD = '''"""A request of a client."""

def get_size(request):
    """Return the request's size in bytes."""
    size = request.size
    return size
'''


def counts(tmp_path: Path, **sources: str) -> dict[str, list[str]]:
    counted = Counts()
    for name, source in sources.items():
        path = tmp_path / f"{name}.py"
        path.write_text(source, encoding="utf-8")
        counted.count_file(path)
    counted.count_common_names()
    return counted.places


def test_each_rule_counts_its_places(tmp_path: Path) -> None:
    places = counts(tmp_path, bad=BAD % " ".join(["word"] * 31))
    assert {rule: len(found) for rule, found in places.items()} == {
        "docstrings": 1,
        "bare-subjects": 1,
        "bare-names": 2,
        "x-of": 1,
        "vague-verbs": 1,
        "long-sentences": 1,
    }
    assert places["x-of"] == [f"{tmp_path / 'bad.py'}:3 size_of"]


def test_plain_words_are_not_counted(tmp_path: Path) -> None:
    assert counts(tmp_path, good=GOOD) == {}


@pytest.mark.parametrize(("files", "common"), [(3, []), (4, ["get_size: 4 files"])])
def test_a_name_that_many_files_define_is_counted(tmp_path: Path, files: int, common: list[str]) -> None:
    places = counts(tmp_path, **{f"module_{number}": GOOD for number in range(files)})
    assert places.get("common-names", []) == common


def test_every_rule_has_a_limit() -> None:
    assert set(RULES["limits"]) == {
        "docstrings", "bare-subjects", "bare-names", "x-of", "vague-verbs", "common-names", "long-sentences"
    }  # fmt: skip
