"""What bench/peers believes: pinned peers, and our service asked in both of its dialects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.load import CannotMeasure
from bench.peers.comparison import compare_answers
from bench.peers.dialects import PAIRS, V2, Answer
from bench.peers.server import Door
from bench.peers.subjects import SUBJECTS, Peer
from bench.running import ROOT, default_config, running_service
from bench.texts import headlines
from tests.support.service_process import ServiceProcess


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with running_service(ROOT / "web_service.py", default_config(1)) as started:
        yield started


def test_our_answers_are_the_same_in_both_dialects(service: ServiceProcess) -> None:
    port = service.http_port
    texts = headlines()[:40]
    pairs = Door(port, "/bert/prediction", PAIRS).ask_all(texts)
    v2 = Door(port, "/v2/models/bert/infer", V2).ask_all(texts)
    compare_answers(pairs, v2)
    assert len({answer.label for answer in pairs}) > 1


@pytest.mark.parametrize("other", [Answer("culture", 0.9), Answer("sports", 0.8)])
def test_other_answers_are_told_before_anything_is_timed(other: Answer) -> None:
    with pytest.raises(CannotMeasure, match="does not answer as we do"):
        compare_answers([Answer("sports", 0.9)], [other])


@pytest.mark.parametrize(
    "environment", sorted({subject.environment for subject in SUBJECTS if isinstance(subject, Peer)})
)
def test_a_peer_is_pinned_and_its_lock_names_no_host(root: Path, environment: str) -> None:
    lines = (root / "requirements" / "peers" / f"{environment}.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", line)] == []
