"""Metrics of shards: the front adds what each has counted since its last report."""

from __future__ import annotations

import msgspec
import pytest

from pipeline.errors import Overloaded
from pipeline.front.metrics.growth import add_metrics_growth, get_metrics_totals
from pipeline.front.metrics.metrics import Metrics, OpFigures, RequestFigures
from pipeline.messages.messages import Timings


def count_requests(metrics: Metrics, requests: RequestFigures, number: int) -> None:
    op = metrics.of_ops["a"]
    for _ in range(number):
        metrics.outcomes["http", 0] += 1
        metrics.request_s["http"].observe(0.02)
        op.queue_s.observe(0.001)
        op.record_run(Timings(1, 2, 3, batches=1, rows=2, tokens=8, padded_tokens=10, answered=2), 1)
        op.failures.count(Overloaded("full"))
        requests.count(0.02, 2, failed=False)


def created() -> tuple[Metrics, dict[str, RequestFigures]]:
    metrics = Metrics("test")
    metrics.of_ops["a"] = OpFigures()
    return metrics, {"m": RequestFigures()}


def test_the_front_counts_what_its_shards_count_and_keeps_its_own() -> None:
    front, front_requests = created()
    expected, expected_requests = created()
    count_requests(front, front_requests["m"], 1)
    for shard, shard_requests in (created(), created()):
        before = None
        for number in (2, 0, 3):
            count_requests(shard, shard_requests["m"], number)
            sent = msgspec.msgpack.encode(get_metrics_totals(shard, shard_requests))
            now = msgspec.msgpack.decode(sent)
            add_metrics_growth(front, front_requests, now, before)
            before = now
    count_requests(expected, expected_requests["m"], 11)
    assert front.outcomes == expected.outcomes
    assert front.op_totals() == pytest.approx(expected.op_totals())
    assert front.request_s["http"].counts == expected.request_s["http"].counts
    assert front.of_ops["a"].by_rows == expected.of_ops["a"].by_rows
    assert front.of_ops["a"].failures == expected.of_ops["a"].failures
    for name in ("succeeded", "rows"):
        assert getattr(front_requests["m"], name) == getattr(expected_requests["m"], name)
    assert front_requests["m"].last_s > 0
