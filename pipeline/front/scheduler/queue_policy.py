"""A model's `dynamic_batching` in config.pbtxt: sizes of batches, the order of answers, and queue policies:
how many requests may wait, and how long."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from pipeline.api.app import App


class QueuePolicy(NamedTuple):
    """Of the requests of one priority.

    timeout_s: after this one that still waits is refused. overridable: a request may ask for less. most: that
    may wait, 0 for any number. delays: who waits too long goes behind the others, in place of being refused.
    """

    timeout_s: float = math.inf
    overridable: bool = False
    most: int = 0
    delays: bool = False

    def wait_s(self, asked_us: int) -> float:
        """How long a request may wait that has asked for so many microseconds, 0 where it has not."""
        asked_s = asked_us / 1e6 if asked_us and self.overridable else math.inf
        return min(asked_s, self.timeout_s)


class QueuePolicies:
    """Those of a model, by the priority that its requests ask for; 0 is that of who asks for none."""

    def __init__(self, batching: Mapping[str, Any]) -> None:
        """batching: the member `dynamic_batching` of its configuration."""
        default = _policy(batching.get("default_queue_policy", {}))
        self._by_level = {
            int(level): _policy(given) for level, given in batching.get("priority_queue_policy", {}).items()
        }
        self._default = default
        self._by_level.setdefault(0, self._by_level.get(batching.get("default_priority_level", 0), default))

    def of(self, priority: int) -> QueuePolicy:
        return self._by_level.get(priority, self._default)


class ModelBatching(NamedTuple):
    """What a model's `dynamic_batching` says beside its queue delay.

    preferred: sizes of batches, ascending. in_order: answers come in the order of the requests. policies:
    None where it has none.
    """

    preferred: tuple[int, ...] = ()
    in_order: bool = False
    policies: QueuePolicies | None = None


def get_model_batching(app: App, op: str) -> ModelBatching:
    """That of the model that this Op runs."""
    for model in app.models:
        if model.op == op and model.config is not None:
            batching = model.config.get("dynamic_batching", {})
            told = batching.get("default_queue_policy") or batching.get("priority_queue_policy")
            preferred = tuple(sorted(map(int, batching.get("preferred_batch_size", ()))))
            most = int(model.config.get("max_batch_size", 0))
            return ModelBatching(
                () if preferred == (most,) else preferred,  # what a full batch says already
                bool(batching.get("preserve_ordering")),
                QueuePolicies(batching) if told else None,
            )
    return ModelBatching()


def _policy(told: Mapping[str, Any]) -> QueuePolicy:
    return QueuePolicy(
        told.get("default_timeout_microseconds", 0) / 1e6 or math.inf,
        bool(told.get("allow_timeout_override")),
        int(told.get("max_queue_size", 0)),
        told.get("timeout_action") == "DELAY",
    )
