"""Hooks that lay hands on what their process shares with the front, which goes on, as do other requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service_process import APPS, ServiceProcess


@pytest.fixture
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "moody.py", {"dag": {"request_timeout": 60}}) as running:
        yield running


def test_shared_memory_cannot_be_cut_short_under_the_front(service: ServiceProcess) -> None:
    refused = service.ask({"do": "shorten"})
    assert refused["err_no"] != 0
    assert service.predict({})["done"] == "None"
    assert service.metric("paddlewheel_op_restarts_total") == 0


def test_a_reply_that_forgets_its_requests_costs_the_worker_and_not_them(
    service: ServiceProcess, tmp_path: Path
) -> None:
    answer = service.predict({"do": "end_the_first_dispatch", "argument": str(tmp_path / "ended")})
    assert answer["done"] == "None"
    service.wait_for_log("leaves requests unanswered")


def test_a_worker_that_stops_in_the_middle_of_a_frame_is_replaced(
    service: ServiceProcess, tmp_path: Path
) -> None:
    answer = service.predict({"do": "begin_a_frame", "argument": str(tmp_path / "begun")})
    assert answer["done"] == "None"
    service.wait_for_log("it stopped in the middle of a frame")
