"""Orders recorded from a Triton with model control, given in turn to a repository of the same models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.repository_process import RepositoryProcess
from tests.support.triton_explicit import SOUND, write_explicit
from tests.support.triton_recordings import RECORDED, Replayed, comparable, recorded_http, replayed_http
from tests.support.triton_repository import write_model

ROWS = {row["id"]: row for row in RECORDED if row["source"] == "explicit"}
# The order in which they were recorded, as far as each needs the state that those before it leave.
_FIRST = ("x.ready.nothing_loaded", "x.index")
_LOADS = (*sorted(case for case in ROWS if case.startswith("x.load.")), "x.load_ens")
_LATER = (
    "x.load_unknown", "x.load_get", "x.load_badjson", "x.noconfig_auto", "x.ver_latest2",
    "x.infer_failed_model", "x.ready_failed_model", "x.index_after",
)  # fmt: skip
_UNLOADED = ("x.index_unloaded", "x.infer_unloaded", "x.meta_unloaded", "x.reload", "x.reload_when_loaded")
_GIVEN = ("x.load_config", "x.load_config.check", "x.load_file")
_DEPENDENTS = (
    "x.unload_dep_of_ens", "x.ens_after_dep_unload", "x.unload_dependents",
    "x.index_after_unload_dependents", "x.unload_unknown",
)  # fmt: skip
_NEW_VERSION = ("x.meta_newversion",)
ORDER = (*_FIRST, *_LOADS, *_LATER, *_UNLOADED, *_GIVEN, *_DEPENDENTS, *_NEW_VERSION)
DIFFERENCES = {
    "x.load.onnx_backend": "that server had no ONNX Runtime; ours has, and misses the model's file",
    "x.index_unloaded": "the unload is over when it is answered: UNAVAILABLE in place of UNLOADING",
    "x.index_after_unload_dependents": "with an ensemble its models are unloaded",
}
_BEFORE = {  # what was done before a case, and not recorded
    "x.noconfig_auto": ["noconfig_auto/load", "ver_latest2/load", "init_raises/load", "ver_all/load"],
    "x.index_unloaded": ["good2/unload"],
    "x.unload_dep_of_ens": ["ens_ok/load"],
    "x.unload_dependents": ["ens_ok/load"],
    "x.meta_newversion": ["good/load"],
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Replayed]]:
    """Ours, by the case."""
    repository = write_explicit(tmp_path_factory.mktemp("repo_x"))
    with RepositoryProcess(repository, arguments=["--model-control-mode=explicit"]) as service:
        yield all_answers(service, repository)


def all_answers(service: RepositoryProcess, repository: Path) -> dict[str, Replayed]:
    """The orders given in turn. repository: the one that is served."""
    return {case: _answer(case, service, repository) for case in ORDER}


def _answer(case: str, service: RepositoryProcess, repository: Path) -> Replayed:
    if case == "x.meta_newversion":
        code = (repository / "good" / "1" / "model.py").read_text("utf-8")
        (write_model(repository, "good", SOUND, version="2") / "2" / "model.py").write_text(code, "utf-8")
    for order in _BEFORE.get(case, ()):
        service.http(f"/v2/repository/models/{order}", b"")
    return replayed_http(ROWS[case], lambda _: service)


def _told(answer: Replayed) -> Any:
    """Of an index the rows, but for the words of a reason."""
    if not isinstance(answer.document, list):
        return None
    return [(row["name"], row.get("version"), row.get("state")) for row in answer.document]


def agrees(case: str, answers: dict[str, Replayed]) -> bool:
    answered, expected = answers[case], recorded_http(ROWS[case])
    same: bool = comparable(answered, expected) == comparable(expected)
    return same and (case == "x.index" or _rows_agree(_told(answered), _told(expected)))


def _rows_agree(ours: Any, theirs: Any) -> bool:
    """Of an index, whose repository had models beside these, the states of those that both have."""
    if ours is None or theirs is None:
        return ours is theirs
    states, recorded = ({row[:2]: row[2] for row in rows if row[2]} for rows in (ours, theirs))
    shared = states.keys() & recorded.keys()
    return all(states[key] == recorded[key] for key in shared)


def test_every_recorded_order_is_given() -> None:
    assert sorted(ORDER) == sorted(ROWS)


@pytest.mark.parametrize("case", ORDER)
def test_the_answer_is_the_recorded_one(case: str, answers: dict[str, Replayed]) -> None:
    assert agrees(case, answers) == (case not in DIFFERENCES), answers[case]


def test_the_index_has_the_states_that_were_recorded_where_the_model_could_be_read(
    answers: dict[str, Replayed],
) -> None:
    expected = {row[:2]: row for row in _told(recorded_http(ROWS["x.index_after"])) if row[2]}
    ours = {row[:2]: row for row in _told(answers["x.index_after"]) if row[2]}
    shared = expected.keys() & ours.keys()
    assert len(shared) > 15
    assert {ours[key] for key in shared} == {expected[key] for key in shared}
