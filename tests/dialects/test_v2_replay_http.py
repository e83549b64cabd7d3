"""Requests recorded from Triton 2.51 over HTTP, sent to stand-ins for its models: answers as recorded.

What equals: status, JSON document, binary payload; of refusals the names and numbers in the text. What need
not: the order of members, the server's version, headers, wording.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.service_process import ServiceProcess
from tests.support.triton_recordings import (
    DIFFERENCES,
    HTTP,
    LEFT,
    RECORDED,
    RECORDINGS,
    Replayed,
    comparable,
    recorded_http,
    replayed_http,
)


@pytest.mark.parametrize("row", HTTP, ids=lambda row: row["id"])
def test_the_answer_is_the_recorded_one(row: dict[str, Any], triton: Callable[[str], ServiceProcess]) -> None:
    expected, answered = recorded_http(row), replayed_http(row, triton)
    difference = DIFFERENCES.get(row["id"])
    if difference is not None:
        assert answered.status == difference.status, answered
        assert comparable(answered) != comparable(expected), "no longer different: take the row out"
        return
    assert comparable(answered, expected) == comparable(expected)


def test_what_is_compared_is_not_empty() -> None:
    assert sum(1 for row in HTTP if recorded_http(row).document) > 50
    assert comparable(Replayed(400, {"error": "no 'x'"}, b"")) != comparable(Replayed(404, None, b""))


def test_what_is_left_out_is_named_with_its_reason() -> None:
    replayed, recorded = ({row["id"] for row in rows} for rows in (RECORDINGS, RECORDED))
    assert recorded - replayed == {case for case in recorded if case.startswith(tuple(LEFT))}
    assert not [prefix for prefix in LEFT if not any(case.startswith(prefix) for case in recorded)]
