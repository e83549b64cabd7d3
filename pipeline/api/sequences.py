"""Rules for the sequences of a step (Op): idle time, place of the state, types of ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

ID_RANGES = {  # correlation ids by datatype of the model's input
    "TYPE_UINT64": range(1 << 64),
    "TYPE_INT64": range(-(1 << 63), 1 << 63),
    "TYPE_UINT32": range(1 << 32),
    "TYPE_INT32": range(-(1 << 31), 1 << 31),
}
DEFAULT_IDLE_S = 1.0  # as Triton's


class SequenceRules(NamedTuple):
    """Rules by which the state of a step's (Op's) sequences is kept."""

    idle_s: float = 0.0  # a sequence without requests for longer is freed; 0: `limits.sequence_idle_s`
    bound: bool = False  # the instance keeps the state itself, so that it runs all requests of a sequence
    slots: int = 0  # sequences of an instance that are bound to it; further ones wait. 0: any number
    id_type: str = ""  # Triton's name of the model's datatype of correlation ids; empty: any
    # Each request is a sequence of its own, and the model reschedules it until it is complete.
    iterative: bool = False


def parse_rules(config: Mapping[str, Any]) -> SequenceRules | None:
    """Return the rules in the `sequence_batching` section of a model's config.pbtxt; None if absent."""
    section = config.get("sequence_batching")
    if section is None:
        return None
    controls = [control for tensor in section["control_input"] for control in tensor["control"]]
    id_types = [c["data_type"] for c in controls if c["kind"] == "CONTROL_SEQUENCE_CORRID"]
    rows = max(1, int(config["max_batch_size"]))
    oldest = section.get("oldest", {})
    return SequenceRules(
        section["max_sequence_idle_microseconds"] / 1e6 or DEFAULT_IDLE_S,
        not section["state"],
        int(oldest.get("max_candidate_sequences", 0)) or rows,
        id_types[0] if id_types else "",
        bool(section.get("iterative_sequence")),
    )
