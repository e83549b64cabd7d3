"""The shapes for TensorRT: what is accepted, how flaws are named, how many rows fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.engines import DynamicShapes
from pipeline.engines.dynamic_shape import TensorRange, format_ranges
from pipeline.errors import ConfigError

INFO = {
    "min_input_shape": {"input_ids": [1, 1], "mask": [1, 1], "unsqueeze2_0.tmp_0": [1, 1, 1, 1]},
    "opt_input_shape": {"input_ids": [4, 32], "mask": [4, 32], "unsqueeze2_0.tmp_0": [2, 1, 1, 32]},
    "max_input_shape": {"input_ids": [16, 128], "mask": [10, 128], "unsqueeze2_0.tmp_0": [2, 1, 1, 128]},
}


def changed(field: str, **tensors: Any) -> dict[str, Any]:
    return INFO | {field: INFO[field] | tensors}


def test_shapes_of_inner_tensors_are_kept() -> None:
    shapes = DynamicShapes.from_info(INFO)
    assert shapes.min["unsqueeze2_0.tmp_0"] == (1, 1, 1, 1)
    assert shapes.opt["input_ids"] == (4, 32)
    assert shapes.max["mask"] == (10, 128)


def test_rows_are_bounded_by_the_smallest_maximum_of_the_feeds() -> None:
    shapes = DynamicShapes.from_info(INFO)
    assert shapes.max_rows(["input_ids", "mask", "not_described"]) == 10
    assert shapes.max_rows(["input_ids"]) == 16
    assert shapes.max_rows(["not_described"]) is None


def test_the_rows_of_several_length_classes_are_those_that_all_take(tmp_path: Path) -> None:
    files = []
    for rows, length in ((8, 9), (3, 20)):
        ranges = {"input_ids": TensorRange(min=(1, 1), opt=(1, 9), max=(rows, length))}
        files.append(tmp_path / f"{rows}.pbtxt")
        files[-1].write_text(format_ranges(ranges))
    shapes = DynamicShapes.from_files(files)
    assert shapes.max_rows(["ids"]) is None
    assert shapes.renamed({"input_ids": "ids"}).max_rows(["ids"]) == 3
    assert [profile.contain({"input_ids": (4, 9)}) for profile in shapes.profiles] == [True, False]
    assert shapes.longest == {"input_ids": (8, 20)}, "what padding may reach"


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (
            None,
            "dynamic_shape_info is NoneType; it must have exactly the keys min_input_shape, opt_input_shape",
        ),
        (
            {},
            "dynamic_shape_info must have exactly the keys min_input_shape, opt_input_shape, max_input_shape",
        ),
        ({**INFO, "max_shape": {}}, "must have exactly the keys"),
        ({**INFO, "opt_input_shape": [1]}, "dynamic_shape_info.opt_input_shape is list, expected a dict"),
        (changed("opt_input_shape", mask=[4, -1]), "opt_input_shape['mask'] is [4, -1], expected a list"),
        (changed("opt_input_shape", mask=[4, True]), "opt_input_shape['mask'] is [4, True]"),
        (changed("min_input_shape", mask="1x1"), "min_input_shape['mask'] is '1x1'"),
        (changed("max_input_shape", extra=[1]), "'extra' is missing in min_input_shape and opt_input_shape"),
        (changed("min_input_shape", mask=[1]), "tensor 'mask' differs in rank: (1,), (4, 32), (10, 128)"),
        (
            changed("opt_input_shape", mask=[11, 1]),
            "'mask' breaks min (1, 1) <= opt (11, 1) <= max (10, 128)",
        ),
        (changed("min_input_shape", mask=[5, 1]), "'mask' breaks min (5, 1) <= opt (4, 32)"),
    ],
)
def test_a_flaw_is_named_with_field_and_tensor(info: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DynamicShapes.from_info(info)
    assert message in caught.value.message


def test_all_flaws_are_told_at_once() -> None:
    info = changed("min_input_shape", mask=[5, 1], input_ids=[99, 1])
    with pytest.raises(ConfigError) as caught:
        DynamicShapes.from_info(info, "op.bert: dynamic_shape_info")
    assert len(caught.value.message.splitlines()) == 2
    assert caught.value.message.startswith("op.bert: dynamic_shape_info: tensor 'input_ids' breaks")
