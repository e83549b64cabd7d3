"""Two answers to one request, compared by kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.front.upgrades.answers import Difference, Kind, Tolerances, find_difference


def compare(old: Any, new: Any, output: str = "y") -> Kind | None:
    difference = find_difference({output: old}, {output: new}, Tolerances())
    return None if difference is None else difference.kind


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (np.array([3, 1]), np.array([3, 1]), None),
        (np.array([3, 1]), np.array([3, 2]), Kind.CLASSES),
        (True, False, Kind.CLASSES),
        (0.93, 0.935, None),
        (0.93, 0.95, Kind.SCORES),
        (np.array([[0.6, 0.4]], np.float32), np.array([[0.601, 0.399]], np.float32), None),
        (np.array([[0.502, 0.498]]), np.array([[0.498, 0.502]]), Kind.CLASSES),
        (np.array([[0.9, 0.1]]), np.array([[0.8, 0.2]]), Kind.SCORES),
        (np.array([100.0, -3.0]), np.array([100.09, -3.0]), None),
        (np.array([100.0, -3.0]), np.array([100.0, -3.2]), Kind.TENSORS),
        (np.array([1.5, np.nan]), np.array([1.5, np.nan]), None),
        (np.array([1.5, np.nan]), np.array([1.5, 2.0]), Kind.TENSORS),
        (np.array([np.inf]), np.array([-np.inf]), Kind.TENSORS),
        (np.zeros((1, 2)), np.zeros((1, 3)), Kind.TENSORS),
        (np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32), None),
        ("体育", "体育", None),
        ("体育", "财经", Kind.TEXTS),
        (np.array([b"a", b"b"], object), np.array(["a", "c"], object), Kind.TEXTS),
        ("[0.91, 0.09]", "[0.912, 0.088]", None),
        ("[0.91, 0.09]", "[0.11, 0.89]", Kind.CLASSES),
        ("[not json", "[nor this", Kind.TEXTS),
        ("0.5", "text", Kind.TEXTS),
        ([{"label": "LOC", "start": 1}], [{"label": "LOC", "start": 1}], None),
        ([{"label": "LOC", "start": 1}], [{"label": "LOC", "start": 2}], Kind.CLASSES),
        ([{"label": "LOC"}], [], Kind.TEXTS),
        ([[1, 2], [3]], [[1, 2], [4]], Kind.CLASSES),
        (None, None, None),
        (None, "a", Kind.TEXTS),
        (1, "1", Kind.TEXTS),
    ],
)
def test_values_are_compared_by_kind(old: Any, new: Any, kind: Kind | None) -> None:
    assert compare(old, new) == kind


def test_a_difference_names_the_place_and_both_values() -> None:
    old = {"entities": [{"label": "LOC"}], "extra": 1}
    new = {"entities": [{"label": "ORG"}], "extra": 1, "added": 2}
    assert find_difference(old, new, Tolerances()) == Difference("entities.0.label", Kind.TEXTS, "LOC", "ORG")
    assert find_difference(old, {"entities": old["entities"]}, Tolerances()) is not None, (
        "an output is missing"
    )
    assert find_difference(new, new | {"more": 1}, Tolerances()) is None


def test_a_report_has_the_beginning_of_a_long_value() -> None:
    difference = find_difference({"y": np.zeros(10**6)}, {"y": np.ones(10**6)}, Tolerances())
    assert difference is not None
    assert len(difference.old) < 300


def test_tolerances_are_settings() -> None:
    assert find_difference({"y": 0.5}, {"y": 0.9}, Tolerances(scores=0.5)) is None
    assert find_difference({"y": 50.0}, {"y": 51.0}, Tolerances(tensors=0.1)) is None
