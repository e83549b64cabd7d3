"""What bench/models tries and believes: families, answers that differ, pages that say what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from bench.models import pages
from bench.models.__main__ import try_in_process
from bench.models.subjects import SUBJECTS, find_subject, get_title
from bench.models.trial import difference_at
from bench.models.wording import LANGUAGES, words_in

STRINGS = find_subject("ONNX: strings")


def test_a_model_that_takes_too_long_is_a_row() -> None:
    finding = try_in_process(STRINGS, limit_s=0.01)
    assert (finding.name, finding.right, finding.endpoints) == ("strings", False, {})
    assert finding.refusal == "it took more than 0.01 s"


@pytest.mark.parametrize(
    ("answered", "told"),
    [
        ({"y": [1.0, 2.0], "label": ["a", "b"]}, 0.0),
        ({"y": [1.0, 2.1], "label": [b"a", b"b"]}, pytest.approx(0.05)),
        ({"y": [1.0, 2.0], "label": ["a", "c"]}, "['a', 'c'] where ['a', 'b'] is right"),
        ({"y": [1.0], "label": ["a", "b"]}, "[1] where [2] is right"),
        ({"label": ["a", "b"]}, "y is not among label"),
    ],
)
def test_answers_that_differ_are_told(answered: Mapping[str, Any], told: object) -> None:
    expected = {"y": np.array([1.0, 2.0]), "label": np.array(["a", "b"])}

    def ask(service: Any, given: Any) -> dict[str, Any]:
        return {name: np.array(value) for name, value in answered.items()}

    assert difference_at(ask, None, {}, expected) == told  # type: ignore[arg-type]


def test_at_least_thirty_models_of_eight_families_are_tried_under_names_of_their_own() -> None:
    titles = [get_title(subject) for subject in SUBJECTS]
    assert len(set(titles)) == len(titles) >= 30
    assert len({subject.family for subject in SUBJECTS}) >= 8


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_pages_show_what_was_found_last_and_every_model_ended_as_it_should(language: str) -> None:
    findings = pages.read_findings(pages.DOCS / "models.json")
    assert [(one.family, one.name) for one in findings.models] == [(one.family, one.name) for one in SUBJECTS]
    assert [one for one in findings.models if not one.right] == []
    page = (pages.DOCS / f"models{LANGUAGES[language]}.md").read_text("utf-8")
    assert pages.with_tables(page, findings, language) == page


def test_chinese_words_are_those_of_models_that_there_are() -> None:
    words = words_in("zh")
    assert words.names.keys() <= {subject.name for subject in SUBJECTS}
    assert words.families.keys() <= {subject.family for subject in SUBJECTS}
