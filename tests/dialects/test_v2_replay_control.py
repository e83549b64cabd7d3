"""Requests recorded from a Triton that loads and unloads on its clients' orders: answers as recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.service_process import APPS, ServiceProcess
from tests.support.triton_recordings import RECORDINGS, comparable, recorded_http, replayed_http

ROWS = {row["id"]: row for row in RECORDINGS if row["source"] == "explicit"}
UNLOADED = ["x.infer_unloaded", "x.meta_unloaded", "x.ready.nothing_loaded"]


@pytest.fixture(scope="module")
def good2() -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "triton.py", name="good2", env={"MODEL": "good2"}) as service:
        yield service


def check(case: str, service: ServiceProcess) -> None:
    expected = recorded_http(ROWS[case])
    assert comparable(replayed_http(ROWS[case], lambda _: service), expected) == comparable(expected)


@pytest.mark.parametrize("case", sorted(ROWS.keys() - set(UNLOADED)))
def test_an_order_is_answered_as_recorded(case: str, good2: ServiceProcess) -> None:
    check(case, good2)


@pytest.mark.parametrize("case", UNLOADED)
def test_what_is_unloaded_is_refused_as_recorded(case: str, good2: ServiceProcess) -> None:
    assert good2.http("/v2/repository/models/good2/unload", b"").status == 200
    check(case, good2)
    check("x.reload", good2)
