"""Mistakes in `sequence_batching` of config.pbtxt: the load says what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.triton.repository import ModelRepository
from tests.support.sequence_models import ZEROS, write_sum


def control(values: str, kind: str = "START") -> str:
    return f'control_input [ {{ name: "C" control [ {{ kind: CONTROL_SEQUENCE_{kind} {values} }} ] }} ]'


@pytest.mark.parametrize(
    ("strategy", "initial", "message"),
    [
        ("oldest { preferred_batch_size: [ 9 ] }", ZEROS, "preferred batch size must be <= max batch size"),
        (
            "direct { minimum_slot_utilization: 2 }",
            ZEROS,
            "minimum slot utilization must be in range (0.0, 1.0]",
        ),
        ("iterative_sequence: true", ZEROS, "remove iterative_sequence, which Python models alone can use"),
        (
            "iterative_sequence: true",
            ZEROS,
            "the model itself keeps the state of its sequences: remove state",
        ),
        (control("int32_false_true: [ 0 ]"), ZEROS, "must have exactly 2 entries for CONTROL_SEQUENCE_START"),
        (control(""), ZEROS, "must specify either 'int32_false_true', 'fp32_false_true' or"),
        (control("int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ]"), ZEROS, "more than one from"),
        (control("data_type: TYPE_FP32", "CORRID"), ZEROS, "Allowed data types are TYPE_UINT64, TYPE_INT64"),
        (control("int32_false_true: [ 0, 1 ]"), ZEROS, "has the input 'C', which is not in the model"),
        ("", ZEROS.replace("FP32", "INT32"), "initial_state has another data type than the state"),
        ("", ZEROS.replace("[ 1 ]", "[ 2 ]"), "initial_state has the dims [2], the state [1]"),
        ("", ZEROS.replace("zero_data: true", 'data_file: "../x"'), "data_file '../x' is no name of a file"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, strategy: str, initial: str, message: str) -> None:
    write_sum(tmp_path, strategy=strategy, initial=initial)
    content = ModelRepository((tmp_path,)).read_models()
    assert message in content.unavailable["sum"].reason
