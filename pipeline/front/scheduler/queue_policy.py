"""A model's `dynamic_batching` in config.pbtxt: sizes of batches, the order of answers, and queue policies:
how many requests may wait, and how long."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from pipeline.api.app import App


class QueuePolicy(NamedTuple):
    """Queue limits for requests of one priority."""

    timeout_s: float = math.inf  # a request that waits longer is refused
    overridable: bool = False  # requests may ask for a shorter timeout
    max_queue_size: int = 0  # requests that may wait; 0: any number
    delays: bool = False  # late requests go behind the others, and are not refused

    def wait_s(self, asked_us: int) -> float:
        """How long a request may wait that has asked for so many microseconds, 0 where it has not."""
        asked_s = asked_us / 1e6 if asked_us and self.overridable else math.inf
        return min(asked_s, self.timeout_s)


class QueuePolicies:
    """Queue policies of a model by priority level; 0 is for requests without a level."""

    def __init__(self, batching: Mapping[str, Any]) -> None:
        """batching: the member `dynamic_batching` of its configuration."""
        default = _policy(batching.get("default_queue_policy", {}))
        self._by_level = {
            int(level): _policy(policy) for level, policy in batching.get("priority_queue_policy", {}).items()
        }
        self._default = default
        self._by_level.setdefault(0, self._by_level.get(batching.get("default_priority_level", 0), default))

    def get_policy(self, priority: int) -> QueuePolicy:
        return self._by_level.get(priority, self._default)


class ModelBatching(NamedTuple):
    """Settings of a model's `dynamic_batching`, besides its queue delay."""

    preferred: tuple[int, ...] = ()  # batch sizes, ascending
    in_order: bool = False  # answers come in the order of the requests
    policies: QueuePolicies | None = None  # None where the model has no queue policies


def get_model_batching(app: App, op: str) -> ModelBatching:
    """Return the batching settings of the model that this Op runs."""
    for model in app.models:
        if model.op == op and model.config is not None:
            batching = model.config.get("dynamic_batching", {})
            policy = batching.get("default_queue_policy") or batching.get("priority_queue_policy")
            preferred = tuple(sorted(map(int, batching.get("preferred_batch_size", ()))))
            max_batch_size = int(model.config.get("max_batch_size", 0))
            return ModelBatching(
                () if preferred == (max_batch_size,) else preferred,  # what a full batch says already
                bool(batching.get("preserve_ordering")),
                QueuePolicies(batching) if policy else None,
            )
    return ModelBatching()


def _policy(policy: Mapping[str, Any]) -> QueuePolicy:
    return QueuePolicy(
        policy.get("default_timeout_microseconds", 0) / 1e6 or math.inf,
        bool(policy.get("allow_timeout_override")),
        int(policy.get("max_queue_size", 0)),
        policy.get("timeout_action") == "DELAY",
    )
