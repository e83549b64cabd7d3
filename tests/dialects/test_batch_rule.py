"""The key by which requests of other shapes or inputs leave a delayed batch, as in Triton."""

from __future__ import annotations

from typing import Any, NamedTuple

from pipeline.dialects.kserve.models import find_batch_rule


class Tensor(NamedTuple):
    shape: tuple[int, ...]


def declare(name: str, *dims: int, ragged: bool = False, optional: bool = False) -> dict[str, Any]:
    return {"name": name, "dims": list(dims), "allow_ragged_batch": ragged, "optional": optional}


def config(*inputs: dict[str, Any], delay_us: int = 100) -> dict[str, Any]:
    return {"dynamic_batching": {"max_queue_delay_microseconds": delay_us}, "input": list(inputs)}


def test_open_dims_are_compared_without_the_rows() -> None:
    rule = find_batch_rule(config(declare("A", -1, 2), declare("B", 4)), ())
    assert rule is not None
    key = rule.build_key({"A": Tensor((1, 3, 2)), "B": Tensor((1, 4))})
    assert key == rule.build_key({"A": Tensor((5, 3, 2)), "B": Tensor((5, 4))})
    assert key != rule.build_key({"A": Tensor((1, 4, 2)), "B": Tensor((1, 4))})


def test_optional_inputs_must_be_the_same() -> None:
    rule = find_batch_rule(config(declare("A", 2), declare("B", 2, optional=True)), ())
    assert rule is not None
    a, b = Tensor((1, 2)), Tensor((1, 2))
    assert rule.build_key({"A": a, "B": b}) == rule.build_key({"B": b, "A": a}) != rule.build_key({"A": a})


def test_fixed_ragged_and_padded_inputs_are_not_compared() -> None:
    fixed, ragged, padded = declare("A", 2), declare("B", -1, ragged=True), declare("C", -1)
    assert find_batch_rule(config(fixed, ragged, padded), {"C"}) is None
    assert find_batch_rule(config(padded, delay_us=0), ()) is None
