"""The rule for delayed batches: requests of a batch have equal shapes and inputs, as in Triton."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class ShapedTensor(Protocol):
    """Interface of a request's input tensor, of which only the shape is needed."""

    @property
    def shape(self) -> Sequence[int]: ...


class BatchRule(NamedTuple):
    """Triton's rule for delayed batches: the properties that must be equal for all requests of a batch."""

    inputs: tuple[str, ...]  # whose shapes agree, but for the batch axis
    by_name: bool  # whether the requests have the same inputs, because some are optional

    def build_key(self, inputs: Mapping[str, ShapedTensor]) -> tuple[Any, ...]:
        """Return a key that is equal for requests that may share a batch.

        inputs: the input tensors of a request, by name.
        """
        shapes = tuple(tuple(inputs[name].shape[1:]) if name in inputs else None for name in self.inputs)
        return (shapes, tuple(sorted(inputs))) if self.by_name else (shapes,)


def find_batch_rule(config: Mapping[str, Any], padded: Collection[str]) -> BatchRule | None:
    """Return the batch rule of a model from its config.pbtxt; None if any of its requests may share a batch.

    padded: inputs that are padded to one length. A model without a queue delay needs no rule, because its
    worker sorts the requests that it gets together.
    """
    if not config.get("dynamic_batching", {}).get("max_queue_delay_microseconds"):
        return None
    inputs = [tensor for tensor in config["input"] if not tensor["allow_ragged_batch"]]
    compared = [t["name"] for t in inputs if -1 in t["dims"] and t["name"] not in padded]
    by_name = any(tensor["optional"] for tensor in config["input"])
    return BatchRule(tuple(compared), by_name) if compared or by_name else None
