"""Triton's batching settings of a model: preferred batch sizes, order of responses, limits of its queue."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class QueuePolicy(NamedTuple):
    """Limits of a model's queue for requests of one priority: maximum wait and number of requests."""

    timeout_s: float = math.inf  # a request that waits longer is refused
    overridable: bool = False  # requests may set a shorter timeout
    max_queue_size: int = 0  # requests that may wait; 0: any number
    delays: bool = False  # expired requests move behind all others, and are not refused

    def wait_s(self, timeout_us: int) -> float:
        """Return the longest time in the queue, in seconds.

        `timeout_us` is the request's own limit; 0 if it sets none.
        """
        timeout_s = timeout_us / 1e6 if timeout_us and self.overridable else math.inf
        return min(timeout_s, self.timeout_s)


class QueuePolicies:
    """The queue limits of a model by priority level; level 0 is for requests without a priority."""

    def __init__(self, batching: Mapping[str, Any]) -> None:
        """`batching` is the `dynamic_batching` section of the model's config.pbtxt."""
        default = _policy(batching.get("default_queue_policy", {}))
        self._by_level = {
            int(level): _policy(policy) for level, policy in batching.get("priority_queue_policy", {}).items()
        }
        self._default = default
        self._by_level.setdefault(0, self._by_level.get(batching.get("default_priority_level", 0), default))

    def get_policy(self, priority: int) -> QueuePolicy:
        """Return the queue limits of a priority level, or the default limits for a level without its own."""
        return self._by_level.get(priority, self._default)


class ModelBatching(NamedTuple):
    """Dynamic batching settings of a model: preferred batch sizes, order of responses and queue limits."""

    preferred: tuple[int, ...] = ()  # batch sizes, ascending
    in_order: bool = False  # responses have the order of the requests
    policies: QueuePolicies | None = None  # None where the model has no queue policies
    least: int = 0  # requests that leave without a wait for more; 0: a full batch
    max_rows: int = 0  # of a full batch, whose size is counted in rows; 0: it is counted in requests


def parse_dynamic_batching(config: Mapping[str, Any]) -> ModelBatching:
    """Return the batching settings in the `dynamic_batching` section of a model's config.pbtxt.

    A sequence model has its batching settings in `sequence_batching`: under `oldest`, or under `direct` as a
    minimum share of filled slots.
    """
    sequences = config.get("sequence_batching", {})
    batching = config.get("dynamic_batching") or sequences.get("oldest", {})
    policy = batching.get("default_queue_policy") or batching.get("priority_queue_policy")
    preferred = tuple(sorted(map(int, batching.get("preferred_batch_size", ()))))
    max_batch_size = int(config.get("max_batch_size", 0))
    return ModelBatching(
        () if preferred == (max_batch_size,) else preferred,  # a full batch leaves at once anyway
        bool(batching.get("preserve_ordering")),
        QueuePolicies(batching) if policy else None,
        math.ceil(sequences.get("direct", {}).get("minimum_slot_utilization", 0.0) * max_batch_size),
        max_batch_size if "dynamic_batching" in config or "oldest" in sequences else 0,
    )


def _policy(policy: Mapping[str, Any]) -> QueuePolicy:
    return QueuePolicy(
        policy.get("default_timeout_microseconds", 0) / 1e6 or math.inf,
        bool(policy.get("allow_timeout_override")),
        int(policy.get("max_queue_size", 0)),
        policy.get("timeout_action") == "DELAY",
    )
