"""Feeds of other types and shapes than the model declares: run where the program runs them, else the err_no
that Paddle Serving 0.9.0 gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import models
from tests.support.service_process import APPS, ServiceProcess

ANSWERS = {
    "usual": "[[78.0]]",
    "rank": "[[[78.0]]]",
    "rank_rows": "[[[78.0], [91.0]]]",
    "objects": "[[78.0]]",
    "extra": "[[78.0]]",  # 5000 in 0.9.0 alone, see docs/migration.md
}
REFUSALS = {
    "badtype": 7000,
    "listval": 7000,
    "none": 7000,
    "texts": 10000,
    "mixed_objects": 10000,
    "badshape": 10000,
    "badrank": 10000,
    "empty": 10000,
    "missing": 5000,
    "other_name": 5000,
}


@pytest.fixture(scope="module", params=["default", "own process"])
def service(request: pytest.FixtureRequest, model_folder: Path) -> Iterator[ServiceProcess]:
    conf = {"model_config": str(models.linear(model_folder)), "thread_num": 1}
    env = {"OWN_PROCESS": "1"} if request.param == "own process" else {}
    config = {"op": {"feeds": {"batch_size": 16, "local_service_conf": conf}}}
    with ServiceProcess(APPS / "odd_feeds.py", config, env=env) as process:
        yield process


@pytest.mark.parametrize("feed", ANSWERS)
def test_what_the_program_runs_is_answered(service: ServiceProcess, feed: str) -> None:
    assert service.predict({"feed": feed}) == {"y": ANSWERS[feed]}


@pytest.mark.parametrize("feed", REFUSALS)
def test_what_it_can_t_run_is_refused_with_the_number_it_had(service: ServiceProcess, feed: str) -> None:
    answer = service.ask({"feed": feed})
    assert answer["err_no"] == REFUSALS[feed], answer
    if feed != "other_name":
        assert "'x'" in answer["err_msg"]


def test_one_odd_feed_of_a_batch_is_its_own_request_s(service: ServiceProcess, tmp_path: Path) -> None:
    feeds = [*ANSWERS, *REFUSALS, "no_name", "no_dict", "rank", "rank"]
    held, gate = {"feed": "usual", "gate": str(tmp_path / "gate")}, tmp_path / "gate"
    answers = service.ask_together([{"feed": feed} for feed in feeds], held, gate)
    for feed, answer in zip(feeds, answers, strict=True):
        if feed in ANSWERS:
            assert answer["value"] == [ANSWERS[feed]], feed
        else:
            assert answer["err_no"] == REFUSALS.get(feed, answer["err_no"] or -1), feed
