"""Queue policies: how many requests may wait before a model, and how long, as its config.pbtxt says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from pipeline.api.app import App


class QueuePolicy(NamedTuple):
    """Of the requests of one priority.

    timeout_s: after this one that still waits is refused. overridable: a request may ask for less. most: that
    may wait, 0 for any number.
    """

    timeout_s: float = math.inf
    overridable: bool = False
    most: int = 0

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


def policies_of(app: App, op: str) -> QueuePolicies | None:
    """The policies of the model that this Op runs; None where it has none."""
    for model in app.models:
        if model.op == op and model.config is not None:
            batching = model.config.get("dynamic_batching", {})
            if batching.get("default_queue_policy") or batching.get("priority_queue_policy"):
                return QueuePolicies(batching)
    return None


def _policy(told: Mapping[str, Any]) -> QueuePolicy:
    # One that delays leaves what is late in the queue: behind the others, there, and in its place here.
    late = told.get("default_timeout_microseconds", 0) if told.get("timeout_action") != "DELAY" else 0
    timeout_s = late / 1e6 or math.inf
    overridable = bool(told.get("allow_timeout_override")) and told.get("timeout_action") != "DELAY"
    return QueuePolicy(timeout_s, overridable, int(told.get("max_queue_size", 0)))
