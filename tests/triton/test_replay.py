"""Requests recorded from Triton 2.51, sent to the repository that it served: answers as recorded.

What equals is said in tests/dialects/test_v2_replay_http.py. `python -m bench.model_repository recorded`
prints the share that agrees, those of test_replay_explicit.py included.
"""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import pytest

from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import read_answer
from tests.support.triton_recordings import (
    BY_THEMSELVES,
    RECORDED,
    comparable,
    recorded_grpc,
    recorded_http,
    replayed_grpc,
    replayed_http,
)
from tests.support.triton_repository_recordings import DIFFERENCES, LEFT
from tests.support.triton_state import of_this_run

_ECHOES = ("params.echo", "g.params")  # their answers name an object by its place in memory
_LEFT = (*BY_THEMSELVES, *LEFT, "x.")
ROWS = [
    of_this_run(row)
    for row in RECORDED
    if row["source"] in ("http", "grpc") and not row["id"].startswith(_LEFT) and row["id"] not in _ECHOES
]


def agrees(row: dict[str, Any], service: RepositoryProcess) -> tuple[bool, Any]:
    """Whether our answer is the recorded one, and ours."""
    if row["source"] == "grpc":
        told = replayed_grpc(row, lambda _: service)
        return told == recorded_grpc(row), told
    expected, answered = recorded_http(row), replayed_http(row, lambda _: service)
    return comparable(answered, expected) == comparable(expected), answered


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_the_answer_is_the_recorded_one(row: dict[str, Any], recorded: RepositoryProcess) -> None:
    same, answered = agrees(row, recorded)
    assert same == (row["id"] not in DIFFERENCES), answered


@pytest.mark.parametrize("case", _ECHOES)
def test_a_python_model_finds_what_the_client_said_beside_the_inputs(
    case: str, recorded: RepositoryProcess
) -> None:
    (row,) = (row for row in RECORDED if row["id"] == case)
    if row["source"] == "grpc":
        told, expected = replayed_grpc(row, lambda _: recorded), recorded_grpc(row)
        texts = [base64.b64decode(one[1]["raw_output_contents"][0])[4:].decode() for one in (told, expected)]
    else:
        answers = replayed_http(row, lambda _: recorded), recorded_http(row)
        texts = [one.document["outputs"][0]["data"][0] for one in answers]
    ours, theirs = ([*text.split("|")[:6]] for text in texts)
    assert json.loads(ours.pop(4)) == json.loads(theirs.pop(4))  # the parameters, in any order
    assert ours == theirs


def test_a_full_queue_refuses_at_once_and_who_waits_too_long_later(recorded: RepositoryProcess) -> None:
    rows = {row["id"]: row for row in RECORDED if row["id"].startswith("queue.")}
    known = {case: recorded_http(row) for case, row in rows.items()}

    request = rows["queue.0"]["request"]
    with contextlib.ExitStack() as stack:
        # As they were recorded: six at a time, and room for two.
        connections = [stack.enter_context(contextlib.closing(recorded.connection())) for _ in range(6)]
        with recorded.stopped():
            for connection in connections:
                connection.request(
                    request["method"], request["path"], request["body"]["text"].encode(), request["headers"]
                )
        answered = [read_answer(connection) for connection in connections]
    answers = [(answer.status, answer.json.get("error", "")) for answer in answered]
    full, late = (known[case].document["error"] for case in ("queue.1", "queue.2"))
    assert (known["queue.0"].status, "") in answers
    assert sum(told.startswith(full) for _, told in answers) >= 2
    assert sum(told == late for _, told in answers) >= 1
    assert {status for status, _ in answers} == {200, 503}


def test_differences_are_of_cases_that_are_replayed() -> None:
    assert {row["id"] for row in ROWS} >= set(DIFFERENCES)


def test_of_what_needs_no_sequence_or_cache_97_of_100_agree() -> None:
    assert 1 - len(DIFFERENCES) / len(ROWS) >= 0.97
