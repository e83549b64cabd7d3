"""Small batches that keep their intermediate tensors: the same answers, and bounded memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pipeline.engines import create_predictor
from pipeline.engines.paddle import paddle_import
from pipeline.engines.paddle import session as paddle_session
from pipeline.engines.paddle.session import Session
from pipeline.models.serving_model import ServingModel
from tests.support.models import local_conf

FLAG = "FLAGS_eager_delete_tensor_gb"
MOST = 1 << 20
PATIENCE_S = 30.0


@pytest.fixture
def freed_at_once() -> Iterator[None]:
    """What is not kept is given back at once, instead of when there is enough of it to wake a thread for."""
    paddle = paddle_import.paddle
    gathered = paddle.get_flags(FLAG)
    paddle.set_flags({FLAG: 0.0})
    gc.collect()  # the predictors of other tests, whose tensors would be given back while this one counts
    yield
    paddle.set_flags(gathered)


def allocated() -> int:
    """Bytes of Paddle's tensors in this process."""
    return int(paddle_import.paddle.base.core.host_memory_stat_current_value("Allocated", 0))


def falls_to(most: int, run: Callable[[], Any]) -> bool:
    """Whether no more than this stays allocated; what is given back is given by a thread, while it runs."""
    until = time.monotonic() + PATIENCE_S
    while allocated() > most and time.monotonic() < until:
        run()
    return allocated() <= most


def settled(run: Callable[[], Any]) -> int:
    """What is allocated once no run changes it: a thread may still be giving back tensors of other tests."""
    until = time.monotonic() + PATIENCE_S
    counts = [-1, -2, -3]
    while len(set(counts[-3:])) > 1 and time.monotonic() < until:
        run()
        counts.append(allocated())
    return counts[-1]


def ids(rows: int, length: int) -> dict[str, Any]:
    numbers = np.arange(rows * length).reshape(rows, length) % 20 + 1
    return {"input_ids": numbers, "token_type_ids": numbers * 0, "attention_mask": np.ones_like(numbers)}


def test_batches_in_turn_answer_alike_whether_their_tensors_are_kept_or_not(
    classifier: ServingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping, giving_back = (create_predictor(classifier, local_conf()) for _ in range(2))
    keeping.run(ids(1, 3))
    monkeypatch.setattr(paddle_session, "KEPT_BYTES", 0)
    giving_back.run(ids(1, 3))
    monkeypatch.undo()
    for rows, length in [(3, 5), (1, 40), (2, 9), (60, 200), (3, 5), (1, 5), (60, 200)]:
        feeds = ids(rows, length)
        np.testing.assert_array_equal(keeping.run(feeds)["logits"], giving_back.run(feeds)["logits"])


@pytest.mark.usefixtures("freed_at_once")
def test_a_small_batch_keeps_its_tensors_and_a_large_one_gives_them_back(
    classifier: ServingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paddle_session, "KEPT_BYTES", MOST)
    predictor = create_predictor(classifier, local_conf())
    before = settled(gc.collect)
    predictor.run(ids(1, 3))
    kept = settled(lambda: predictor.run(ids(4, 8)))
    assert before < kept
    assert predictor.run(ids(64, 512))["logits"].shape == (64, 3)
    assert falls_to(before + MOST, lambda: predictor.run(ids(1, 3)))


def test_a_program_of_which_there_can_be_no_second_is_run_all_the_same(
    classifier: ServingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []

    def refuse(session: Session) -> Session:
        refused.append(session)
        raise RuntimeError("no")

    expected = create_predictor(classifier, local_conf()).run(ids(1, 3))["logits"]
    monkeypatch.setattr(Session, "clone", refuse)
    predictor = create_predictor(classifier, local_conf())
    for _ in range(2):
        np.testing.assert_array_equal(predictor.run(ids(1, 3))["logits"], expected)
    assert refused
