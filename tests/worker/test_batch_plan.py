"""Which feeds run together, how they are joined and padded, and how fetches are cut apart again."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pipeline.models.serving_model import FeedPadding, Padding
from pipeline.worker.model import Joining
from pipeline.worker.plan import RUN_OVERHEAD_S, BatchLimits, RunCosts, Slice, bucket, plan
from pipeline.worker.runner import describe_feed, join, slice_feed, split_outputs

TEXT = "text"
TENS = [[*range(i, i + 10)] for i in range(0, 40, 10)]


def texts(*lengths: int, rows: int = 1) -> list[Slice]:
    return [Slice(rows, length, TEXT) for length in lengths]


@pytest.mark.parametrize(
    ("items", "limits", "expected"),
    [
        ([], BatchLimits(), []),
        (texts(5), BatchLimits(), [[0]]),
        (texts(5, 5, 5), BatchLimits(requests=1), [[0], [1], [2]]),
        (texts(5, 5, 5), BatchLimits(requests=2), [[0, 1], [2]]),
        (texts(30, 10, 20), BatchLimits(requests=8), [[1, 2, 0]]),
        (texts(30, 10, 20), BatchLimits(requests=2), [[1, 2], [0]]),
        (texts(1, 1, 1, 1, rows=3), BatchLimits(requests=8, rows=6), [[0, 1], [2, 3]]),
        (texts(1, 1, 1, 1, rows=4), BatchLimits(requests=8, rows=6), [[0], [1], [2], [3]]),
        (texts(1, 1, rows=7), BatchLimits(requests=8, rows=6), [[0], [1]]),
        (texts(10, 20, 40), BatchLimits(requests=8, tokens=40), [[0, 1], [2]]),
        (texts(10, 20, 100), BatchLimits(requests=8, tokens=40), [[0, 1], [2]]),
        (texts(*[1] * 40), BatchLimits(requests=40, rows=10), TENS),
        ([Slice(1, 1, None), Slice(1, 1, None)], BatchLimits(requests=8), [[0], [1]]),
    ],
    ids=[
        "nothing", "one", "batch_size 1", "batch_size 2", "short ones first", "a long one by itself",
        "rows fill up", "rows do not fit", "one over the rows", "tokens with padding", "one over the tokens",
        "10+10+10+10", "what has no shape runs alone",
    ],
)  # fmt: skip
def test_batches_are_cut_where_a_limit_would_be_passed(
    items: Sequence[Slice], limits: BatchLimits, expected: list[list[int]]
) -> None:
    assert plan(items, limits) == expected


def test_different_shapes_never_share_a_batch_and_the_shortest_batch_runs_first() -> None:
    items = [Slice(1, 9, "a"), Slice(1, 3, "b"), Slice(1, 8, "a"), Slice(1, 4, "b"), Slice(1, 1, None)]
    batches = plan(items, BatchLimits(requests=8))
    assert [sorted(batch) for batch in batches] == [[4], [1, 3], [0, 2]]


def test_any_plan_runs_every_item_once_within_the_limits() -> None:
    dice = random.Random(7)
    for _ in range(300):
        items = [
            Slice(dice.randint(1, 6), dice.randint(1, 50), dice.choice(["a", "b", "c", None]))
            for _ in range(dice.randint(0, 40))
        ]
        limits = BatchLimits(
            requests=dice.randint(1, 10),
            rows=dice.choice([None, 1, 5, 20]),
            tokens=dice.choice([None, 30, 300]),
        )
        batches = plan(items, limits)
        assert sorted(itertools.chain(*batches)) == list(range(len(items)))
        longest = [max(items[i].length for i in batch) for batch in batches]
        assert longest == sorted(longest)
        for batch in batches:
            members = [items[i] for i in batch]
            if len(batch) == 1:
                continue
            assert len({item.shape for item in members}) == 1
            assert members[0].shape is not None
            rows = sum(item.rows for item in members)
            assert len(batch) <= limits.requests
            assert limits.rows is None or rows <= limits.rows
            assert limits.tokens is None or rows * max(item.length for item in members) <= limits.tokens


def test_shapes_whose_hashes_collide_are_kept_apart() -> None:
    """hash(-1) == hash(-2): sorting by hash may interleave such shapes."""
    items = [Slice(1, length, shape) for length, shape in zip(range(1, 9), itertools.cycle([-1, -2]))]
    for batch in plan(items, BatchLimits(requests=8)):
        assert len({items[i].shape for i in batch}) == 1


@pytest.mark.parametrize(
    ("length", "buckets", "most", "expected"),
    [
        (1, None, None, 8), (8, None, None, 8), (9, None, None, 16), (64, None, None, 64),
        (65, None, None, 72), (129, None, None, 144), (500, None, None, 512), (513, None, None, 576),
        (5, [16, 64], None, 16), (16, [16, 64], None, 16), (17, [16, 64], None, 64),
        (65, [16, 64], None, 65),
        (61, None, 62, 62), (510, None, 511, 511), (5, [16], 10, 10), (70, None, 60, 70),
    ],
)  # fmt: skip
def test_lengths_are_rounded_up_to_a_bucket_that_the_engine_takes(
    length: int, buckets: list[int] | None, most: int | None, expected: int
) -> None:
    assert bucket(length, buckets, most) == expected


def test_the_built_in_buckets_waste_little_and_are_few() -> None:
    padded = {length: bucket(length, None) for length in range(1, 4097)}
    assert all(length <= p for length, p in padded.items())
    assert all(p - length <= max(7, length / 8) for length, p in padded.items())
    assert list(padded.values()) == sorted(padded.values())
    assert len(set(padded.values())) <= 64


def joined(feeds: Sequence[Any], joining: Joining) -> dict[str, Any]:
    return join([describe_feed(feed, joining) for feed in feeds], joining)


IDS = Joining(Padding({"ids": FeedPadding(1), "mask": FeedPadding(1, -1)}, {"states": 1}), (4, 8))


def ids(*rows: Sequence[int]) -> dict[str, np.ndarray]:
    return {"ids": np.array(rows), "mask": np.ones((len(rows), len(rows[0])), "int64")}


def test_declared_axes_are_padded_with_their_value_to_the_bucket_of_the_longest() -> None:
    merged = joined([ids([1, 2]), ids([3, 4, 5], [6, 7, 8])], IDS)
    assert merged["ids"].tolist() == [[1, 2, 0, 0], [3, 4, 5, 0], [6, 7, 8, 0]]
    assert merged["mask"].tolist() == [[1, 1, -1, -1], [1, 1, 1, -1], [1, 1, 1, -1]]
    assert merged["ids"].dtype == np.int64


def test_a_feed_alone_is_padded_to_its_bucket_too() -> None:
    assert joined([ids([1, 2, 3, 4, 5])], IDS)["ids"].tolist() == [[1, 2, 3, 4, 5, 0, 0, 0]]


def test_other_axes_than_the_second_may_be_padded() -> None:
    joining = Joining(Padding({"x": FeedPadding(2, 9.0)}, {}), (4,))
    feeds = [{"x": np.zeros((1, 2, 3), "float32")}, {"x": np.ones((1, 2, 1), "float32")}]
    assert len({describe_feed(feed, joining).shape for feed in feeds}) == 1
    assert joined(feeds, joining)["x"].tolist() == [[[0, 0, 0, 9]] * 2, [[1, 9, 9, 9]] * 2]


def test_rows_above_the_proven_length_join_rows_of_equal_shape_alone() -> None:
    joining = Joining(IDS.padding, (4, 8), max_length=4)
    short, long, longer, other = ids([1, 2]), ids([1] * 5), ids([2] * 5), ids([1] * 6)
    shapes = [describe_feed(feed, joining).shape for feed in (short, ids([1] * 4), long, longer, other)]
    assert shapes[0] == shapes[1] != shapes[2] == shapes[3] != shapes[4] != shapes[0]
    assert joined([long, longer], joining)["ids"].tolist() == [[1] * 5, [2] * 5]
    assert joined([short], joining)["ids"].tolist() == [[1, 2, 0, 0]]


def test_nothing_is_padded_without_a_declaration() -> None:
    short, long = {"image": np.zeros((1, 3, 4, 4))}, {"image": np.zeros((1, 3, 4, 5))}
    assert describe_feed(short, Joining()).shape != describe_feed(long, Joining()).shape
    assert describe_feed(short, IDS).shape != describe_feed(long, IDS).shape


def test_a_feed_with_a_lod_runs_alone() -> None:
    """Its offsets would be wrong among the rows of others."""
    feed = {"words": np.zeros((2, 1), "int64"), "words.lod": np.array([0, 2])}
    assert describe_feed(feed, Joining()).shape is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": np.zeros((1, 2))}, {"b": np.zeros((1, 2))}),
        ({"a": np.zeros((1, 2), "float32")}, {"a": np.zeros((1, 2), "float64")}),
        ({"a": np.zeros((1, 2))}, {"a": np.zeros((1, 2)), "b": np.zeros((1, 2))}),
        ({"a": np.zeros((1, 2))}, {"a": np.zeros((1, 2, 1))}),
    ],
    ids=["names", "dtypes", "number of feeds", "ranks"],
)
def test_feeds_that_differ_are_not_joined(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert describe_feed(one, Joining()).shape != describe_feed(other, Joining()).shape


@pytest.mark.parametrize(
    "feed",
    [{"a": 1}, {"a": np.array(1)}, {"a": np.zeros(2), "b": np.zeros(3)}, {}, {"a": np.zeros((0, 4))}],
    ids=["no array", "0-d", "unequal rows", "empty", "no rows"],
)
def test_a_feed_without_rows_of_its_own_runs_alone_as_it_is(feed: dict[str, object]) -> None:
    item = describe_feed(feed, IDS)
    assert (item.rows, item.shape) == (1, None)
    assert slice_feed(item, 1) == [feed]
    assert joined([feed], IDS).keys() == feed.keys()


def test_each_gets_its_own_rows_back_cut_to_its_own_length() -> None:
    feeds = [ids([1, 2]), ids([3, 4, 5], [6, 7, 8])]
    items = [describe_feed(feed, IDS) for feed in feeds]
    states = joined(feeds, IDS)["ids"] * 10
    one, other = split_outputs({"states": states, "first": states[:, 0]}, items, IDS.padding)
    assert (one["states"].tolist(), one["first"].tolist()) == ([[10, 20]], [10])
    assert (other["states"].tolist(), other["first"].tolist()) == ([[30, 40, 50], [60, 70, 80]], [30, 60])


def test_the_parts_of_a_batch_share_no_memory() -> None:
    fetch = np.zeros((2, 3))
    one, other = split_outputs({"x": fetch}, texts(1, 1), None)
    one["x"][:] = 1
    assert other["x"].tolist() == [[0, 0, 0]]
    assert not np.shares_memory(one["x"], fetch)


def test_a_list_of_a_row_per_element_is_split_like_an_array() -> None:
    one, other = split_outputs(
        {"x": np.zeros((3, 1)), "texts": ["a", "b", "c"]}, [Slice(1, 5, TEXT), Slice(2, 5, TEXT)], None
    )
    assert (one["texts"], other["texts"]) == (["a"], ["b", "c"])


@pytest.mark.parametrize("fetch", [np.zeros(3), np.array(1.0), [1, 2, 3], "text", None])
def test_fetches_without_a_row_for_each_row_are_not_split(fetch: object) -> None:
    assert split_outputs({"good": np.zeros((2, 1)), "x": fetch}, texts(1, 1), None) is None


def test_a_feed_that_runs_alone_is_not_cut_to_a_length_it_does_not_have() -> None:
    """Its rows can't be told, so its length can't either: the fetch is its whole answer."""
    feed = {"ids": np.ones((1, 3), "int64"), "weights": np.ones((2, 5))}
    (own,) = split_outputs({"states": np.ones((1, 4, 6))}, [describe_feed(feed, IDS)], IDS.padding)
    assert own["states"].shape[1] >= 3


def test_a_feed_whose_padded_axes_differ_in_length_runs_alone_and_unpadded() -> None:
    feed = {"ids": np.ones((1, 3), "int64"), "mask": np.ones((1, 5), "int64")}
    assert describe_feed(feed, IDS).shape is None
    assert {name: array.shape for name, array in joined([feed], IDS).items()} == {
        "ids": (1, 3),
        "mask": (1, 5),
    }


@pytest.mark.parametrize(
    "array",
    [np.ones((1, 0), "int64"), np.ma.masked_array(np.ones((1, 3), "int64"), mask=True)],
    ids=["an empty row", "a masked array"],
)
def test_a_feed_that_others_would_change_runs_alone(array: np.ndarray) -> None:
    """Beside others its answer would be that of the padding, or of the elements behind the mask."""
    empty = describe_feed({"ids": array, "mask": array}, IDS)
    assert (empty.rows, empty.length, empty.shape) == (1, 1, None)


def test_a_feed_of_many_rows_is_cut_into_pieces_in_order() -> None:
    feed = {"a": np.arange(7), "b": np.arange(14).reshape(7, 2)}
    pieces = slice_feed(describe_feed(feed, Joining()), 3)
    assert [piece["a"].tolist() for piece in pieces] == [[0, 1, 2], [3, 4, 5], [6]]
    assert np.concatenate([piece["b"] for piece in pieces]).tolist() == feed["b"].tolist()
    assert slice_feed(describe_feed(feed, Joining()), 7) == [feed]
    assert slice_feed(describe_feed(feed, Joining()), None) == [feed]


LENGTHS, ROWS = (8, 16, 64, 256), (1, 2, 4, 8, 16, 32)


def costs_of(run_s: float, token_s: float, most_rows: int = 32) -> RunCosts:
    """Of a model whose runs have a price of their own, and whose tokens cost more in large runs."""
    points = {
        (rows, length): run_s + rows * length * token_s * (1 + rows * length / 2000)
        for rows in ROWS
        for length in LENGTHS
    }
    return RunCosts(points, most_rows)


def least_s(items: Sequence[Slice], limits: BatchLimits, costs: RunCosts) -> float:
    """The time of the best of all cuts of the sorted items, each of which is tried."""
    lengths = sorted(item.length for item in items)
    best = [0.0]
    for end in range(1, len(lengths) + 1):
        sizes = range(1, min(end, limits.requests) + 1)
        of_last = [best[end - size] + costs.estimate_s(size, lengths[end - 1]) for size in sizes]
        best.append(min(of_last) + RUN_OVERHEAD_S)
    return best[-1]


def time_of(batches: list[list[int]], items: Sequence[Slice], costs: RunCosts) -> float:
    runs = [costs.estimate_s(sum(items[i].rows for i in b), max(items[i].length for i in b)) for b in batches]
    return sum(runs) + RUN_OVERHEAD_S * len(runs)


def test_batches_are_cut_where_all_runs_together_take_the_least_time() -> None:
    dice = random.Random(3)
    for _ in range(60):
        costs = costs_of(dice.choice([1e-6, 1e-4, 1e-2]), 1e-5)
        items = texts(*(dice.randint(3, 400) for _ in range(dice.randint(1, 12))))
        limits = BatchLimits(requests=dice.choice([2, 8]))
        batches = plan(items, limits, costs)
        assert sorted(itertools.chain(*batches)) == list(range(len(items)))
        assert time_of(batches, items, costs) <= 1.02 * least_s(
            items, limits, costs
        )  # not each size is tried


def test_a_dear_run_makes_large_batches_and_dear_tokens_small_ones() -> None:
    mixed = texts(8, 9, 10, 200, 210, 220)
    assert plan(mixed, BatchLimits(requests=32), costs_of(10.0, 1e-9)) == [[0, 1, 2, 3, 4, 5]]
    assert plan(mixed, BatchLimits(requests=32), costs_of(1e-9, 1e-3)) == [[i] for i in range(6)]


def test_what_a_run_costs_beside_the_predictor_makes_batches_larger() -> None:
    alike = texts(*[16] * 8)
    # Of four rows and of eight a row costs as much, so that only the number of runs makes a difference.
    assert plan(
        alike, BatchLimits(requests=32), RunCosts({(1, 16): 3e-4, (4, 16): 8e-4, (8, 16): 16e-4}, 32)
    ) == [list(range(8))]
    # Two rows of one run would take longer than two runs, and all that these cost beside.
    far = RunCosts({(1, 16): 1e-3, (2, 16): 2e-3 + 1.1 * RUN_OVERHEAD_S}, 32)
    assert plan(texts(16, 16), BatchLimits(requests=32), far) == [[0], [1]]


def test_a_cut_by_cost_keeps_to_the_limits_and_never_joins_what_has_no_shape() -> None:
    cheap = costs_of(10.0, 1e-9)
    assert plan(texts(*[1] * 40), BatchLimits(requests=40, rows=10), cheap) == TENS
    assert plan(texts(10, 20, 40), BatchLimits(requests=8, tokens=40), cheap) == [[0, 1], [2]]
    assert plan(texts(1, 1, rows=40), BatchLimits(requests=8, rows=6), cheap) == [[0], [1]]
    assert plan([Slice(1, 1, None)] * 2, BatchLimits(requests=8), cheap) == [[0], [1]]


def test_run_costs_are_those_measured_and_a_power_in_between() -> None:
    costs = RunCosts({(1, 16): 1.0, (4, 16): 4.0, (1, 64): 2.0, (4, 64): 16.0}, 4)
    assert costs.estimate_s(1, 16) == 1.0
    assert costs.estimate_s(2, 16) == pytest.approx(2.0)
    assert costs.estimate_s(1, 32) == pytest.approx(2**0.5)
    assert costs.estimate_s(8, 64) == pytest.approx(32.0)  # beyond the measured: in proportion
    assert costs.estimate_s(1, 3) == 1.0
    assert list(costs.of_length(16)) == pytest.approx([0, 1, 2, 3, 4])


def test_run_costs_follow_real_runs_slowly_and_hardly_one_that_was_disturbed() -> None:
    costs = RunCosts({(1, 16): 1.0}, 4)
    costs.record_run(1, 16, 50.0)
    assert costs.estimate_s(1, 16) < 1.03
    for _ in range(200):
        costs.record_run(1, 16, 2.0)
    assert costs.estimate_s(1, 16) == pytest.approx(2.0, rel=0.01)


def test_run_costs_of_several_threads_stay_as_they_were_measured() -> None:
    costs = RunCosts({(1, 16): 1.0}, 4, follows=False)
    for _ in range(200):
        costs.record_run(1, 16, 2.0)
    assert costs.estimate_s(1, 16) == 1.0


@pytest.mark.parametrize("points", [{}, {(1, 16): 0.0}, {(1, 16): 1.0, (2, 32): 1.0}])
def test_run_costs_want_a_time_for_each_size(points: dict[tuple[int, int], float]) -> None:
    with pytest.raises(ValueError, match="run costs need"):
        RunCosts(points, 4)


def test_run_costs_beyond_the_largest_rows_and_length_grow_with_both() -> None:
    costs = RunCosts({(rows, length): float(rows) for rows in (1, 4, 16) for length in (8, 16, 64)}, 4)
    assert costs.estimate_s(32, 64) == 32.0
    assert costs.estimate_s(16, 128) == 32.0
    assert costs.estimate_s(32, 128) == 64.0
    assert costs.estimate_s(4, 16) == 4.0
    assert costs.estimate_s(1, 1) == 1.0


@pytest.mark.parametrize(
    ("rows", "length", "nearest"),
    [(1, 8, (1, 8)), (3, 15, (4, 16)), (10, 40, (16, 64)), (5, 20, (4, 16)), (100, 500, (16, 64))],
)
def test_a_run_moves_the_measured_size_that_is_nearest_in_proportion(
    rows: int, length: int, nearest: tuple[int, int]
) -> None:
    points = {(r, n): 1.0 for r in (1, 4, 16) for n in (8, 16, 64)}
    costs = RunCosts(points, 4)
    costs.record_run(rows, length, 1.2 * costs.estimate_s(rows, length))
    assert [size for size in points if costs.points[size] != 1.0] == [nearest]
    assert costs.points[nearest] == pytest.approx(1.01)


def test_costs_of_a_length_are_computed_again_after_a_twentieth_of_change() -> None:
    for factor in (1.5, 1 / 1.5):
        costs = RunCosts({(1, 16): 8.0}, 4)
        before = costs.of_length(16)
        assert costs.of_length(16) is before
        change, records = 1.0, 0
        while 1 / 1.05 < change < 1.05:
            assert costs.of_length(16) is before
            costs.record_run(1, 16, factor * costs.estimate_s(1, 16))
            change *= 1 + 0.05 * (factor - 1)
            records += 1
        after = costs.of_length(16)
        assert records > 1
        assert after[1] == pytest.approx(8.0 * change)
        costs.record_run(1, 16, factor * costs.estimate_s(1, 16))
        assert costs.of_length(16) is after, "the next twentieth counts from there"


def test_feeds_of_two_shapes_between_each_other_make_two_batches() -> None:
    items = [Slice(1, length, "ab"[length % 2]) for length in range(1, 9)]
    for costs in (None, costs_of(10.0, 1e-9)):
        batches = plan(items, BatchLimits(requests=8), costs)
        assert sorted(map(sorted, batches)) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_a_feed_over_a_limit_does_not_cut_those_behind_it() -> None:
    items = [Slice(40, 1, TEXT), *texts(2, 2, 2)]
    assert plan(items, BatchLimits(requests=8, rows=10), costs_of(10.0, 1e-9)) == [[0], [1, 2, 3]]


def test_a_run_of_more_rows_than_are_known_by_length_is_estimated() -> None:
    costs = costs_of(10.0, 1e-9, most_rows=3)
    assert len(costs.of_length(16)) == 4
    assert plan(texts(*[16] * 8), BatchLimits(requests=8), costs) == [list(range(8))]


@pytest.mark.parametrize(
    ("length", "max_length", "expected"),
    [(128, None, 128), (129, None, 144), (256, None, 256), (257, None, 288), (65, 72, 72), (65, 71, 71)],
)
def test_built_in_steps_grow_behind_powers_of_two(length: int, max_length: int | None, expected: int) -> None:
    assert bucket(length, None, max_length) == expected
