"""A model's `dynamic_batching`: preferred batch sizes, order of answers, and queue policies by priority."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pipeline.api.app import App, ServedModel
from pipeline.api.dag import FEED, Dag, Edge, Node
from pipeline.api.examples import Examples
from pipeline.api.queue_policy import ModelBatching, QueuePolicies, QueuePolicy, parse_dynamic_batching
from pipeline.config.config_file import ServiceConfig


def served(name: str, config: dict[str, Any] | None) -> ServedModel:
    return ServedModel(name, Dag((Node(name, name, (Edge(FEED),)),), name, source=FEED), config=config)


def app_with(*models: ServedModel) -> App:
    config = ServiceConfig.model_validate({"http_port": 9292, "op": {}})
    return App("app", models, config, "/app.py", (), "/", Examples())


def test_a_policy_without_settings_limits_nothing() -> None:
    policy = QueuePolicies({"default_queue_policy": {}}).get_policy(0)
    assert policy == QueuePolicy(math.inf, False, 0, False)
    assert policy.wait_s(0) == policy.wait_s(5_000) == math.inf


def test_a_policy_reads_each_setting_of_the_model() -> None:
    setting = {
        "default_timeout_microseconds": 250_000,
        "allow_timeout_override": True,
        "max_queue_size": 7,
        "timeout_action": "DELAY",
    }
    policies = QueuePolicies({"default_queue_policy": setting})
    assert policies.get_policy(0) == QueuePolicy(0.25, True, 7, True)
    assert not QueuePolicies({"default_queue_policy": {"timeout_action": "REJECT"}}).get_policy(0).delays


@pytest.mark.parametrize(
    ("timeout_s", "overridable", "requested_us", "expected_s"),
    [
        (0.5, True, 200_000, 0.2),
        (0.5, True, 900_000, 0.5),
        (0.5, True, 0, 0.5),
        (0.5, False, 200_000, 0.5),
        (math.inf, True, 200_000, 0.2),
        (math.inf, False, 200_000, math.inf),
    ],
    ids=["shorter", "longer has no effect", "none requested", "not overridable", "no default", "neither"],
)
def test_a_request_may_shorten_its_queue_timeout_where_the_policy_allows(
    timeout_s: float, overridable: bool, requested_us: int, expected_s: float
) -> None:
    assert QueuePolicy(timeout_s, overridable).wait_s(requested_us) == expected_s


def test_each_priority_level_has_its_policy_and_others_the_default() -> None:
    policies = QueuePolicies(
        {
            "default_queue_policy": {"max_queue_size": 1},
            "default_priority_level": 2,
            "priority_queue_policy": {"2": {"max_queue_size": 20}, "3": {"max_queue_size": 30}},
        }
    )
    assert [policies.get_policy(level).max_queue_size for level in (0, 1, 2, 3, 4)] == [20, 1, 20, 30, 1]


def test_requests_without_a_level_have_the_default_policy_where_the_default_level_has_none() -> None:
    batching = {"default_queue_policy": {"max_queue_size": 1}, "priority_queue_policy": {"1": {}}}
    assert QueuePolicies(batching).get_policy(0).max_queue_size == 1
    assert QueuePolicies({**batching, "default_priority_level": 1}).get_policy(0).max_queue_size == 0
    assert QueuePolicies({**batching, "default_priority_level": 9}).get_policy(0).max_queue_size == 1
    assert QueuePolicies({"priority_queue_policy": {"1": {"max_queue_size": 4}}}).get_policy(1)[2] == 4


def test_the_batching_of_an_op_comes_from_the_model_that_it_runs() -> None:
    batching = {"preferred_batch_size": [8, 4, "2"], "preserve_ordering": True}
    app = app_with(
        served("other", {"dynamic_batching": {}}),
        served("unset", None),
        served("model", {"dynamic_batching": batching, "max_batch_size": 8}),
    )
    assert app.get_batching("model") == ModelBatching((2, 4, 8), True, None, max_rows=8)
    for op in ("other", "unset", "absent"):
        assert app.get_batching(op) == ModelBatching((), False, None)


@pytest.mark.parametrize(
    ("preferred", "max_batch_size", "expected"),
    [([8], 8, ()), ([4], 8, (4,)), ([4, 8], 8, (4, 8)), ([8], None, (8,))],
    ids=["a full batch", "less than a full batch", "both", "no maximum"],
)
def test_a_preferred_size_of_a_full_batch_alone_has_no_effect(
    preferred: list[int], max_batch_size: int | None, expected: tuple[int, ...]
) -> None:
    config: dict[str, Any] = {"dynamic_batching": {"preferred_batch_size": preferred}}
    if max_batch_size is not None:
        config["max_batch_size"] = max_batch_size
    assert app_with(served("model", config)).get_batching("model").preferred == expected


@pytest.mark.parametrize("key", ["default_queue_policy", "priority_queue_policy"])
def test_either_kind_of_queue_policy_applies(key: str) -> None:
    policy: dict[str, Any] = {"max_queue_size": 3}
    batching = {key: policy if key.startswith("default") else {"1": policy}}
    app = app_with(served("model", {"dynamic_batching": batching}))
    policies = app.get_batching("model").policies
    assert policies is not None
    assert policies.get_policy(1).max_queue_size == 3


def test_a_model_of_sequences_has_its_settings_under_oldest_or_direct() -> None:
    oldest = {"preferred_batch_size": [4, 2], "preserve_ordering": True}
    config = {"max_batch_size": 8, "sequence_batching": {"oldest": oldest}}
    assert parse_dynamic_batching(config) == ModelBatching((2, 4), True, None, 0, 8)
    both = {**config, "dynamic_batching": {"preferred_batch_size": [3]}}
    assert parse_dynamic_batching(both) == ModelBatching((3,), False, None, 0, 8)
    direct = {"max_batch_size": 8, "sequence_batching": {"direct": {"minimum_slot_utilization": 0.3}}}
    assert parse_dynamic_batching(direct) == ModelBatching((), False, None, 3, 0)
    assert parse_dynamic_batching({"max_batch_size": 8, "sequence_batching": {}}) == ModelBatching()
    assert parse_dynamic_batching({"max_batch_size": 8, "dynamic_batching": {}}) == ModelBatching(max_rows=8)
    full = {"max_batch_size": 8, "dynamic_batching": {"preferred_batch_size": [8]}}
    assert parse_dynamic_batching(full) == ModelBatching(max_rows=8)
