"""Response bodies, held against what the original printed."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest

from client.protos.pipeline_service_pb2 import Response
from pipeline.dialects.key_value.answers import JSON, PROTO, render, render_error
from pipeline.errors import ProductError, UnprintableAnswer
from pipeline.paddle_serving.numpy_1 import print_as_numpy_1
from tests.support.recordings import recorded

# What the probe app's Op returned for each recorded case.
ANSWERS: dict[str, Any] = {
    "f32": {"a": np.arange(4, dtype="float32") / 3},
    "f64": {"a": np.arange(4, dtype="float64") / 3},
    "f16": {"a": np.arange(4).astype("float16")},
    "i64": {"a": np.arange(4)},
    "i32": {"a": np.arange(4, dtype="int32")},
    "u8": {"a": np.arange(4, dtype="uint8")},
    "bool": {"a": np.array([True, False])},
    "npstr": {"a": np.array(["x", "中文"])},
    "bytes": {"a": np.array([b"ab"])},
    "obj": {"a": np.array([{"k": 1}, None], dtype=object)},
    "zerod": {"a": np.array(3.5)},
    "npscalar": {"a": np.float32(3.5)},
    "empty": {"a": np.zeros((0, 3), "float32")},
    "nan": {"a": np.array([np.nan, np.inf, -np.inf])},
    "big": {"a": np.arange(3000, dtype="float32").reshape(3, 1000)},
    "d3": {"a": np.zeros((2, 2, 2), "float32")},
    "sci": {"a": np.array([1e-8, 1e8, 1.0], "float32")},
    "two": {"b": np.array([1]), "a": np.array([2])},
    "str": {"a": 'hello 中文 <&>\u2028"q"'},
    "str2": {"b": "1", "a": "2"},
    "strempty": {"a": ""},
    "liststr": {"a": ["x", "中文", "it's"]},
    "listint": {"a": [1, 2]},
    "listnd": {"a": [np.array([1])]},
    "int": {"a": 1},
    "float": {"a": 1.5},
    "none": {"a": None},
    "dict": {"a": {"b": 1}},
    "boolpy": {"a": True},
    "bytespy": {"a": b"x"},
    "mixed": {"a": np.array([1]), "b": "s"},
    "mixed2": {"b": "s", "a": np.array([1])},
    "emptydict": {},
    "intkey": {1: "x"},
    "intkey_nd": {1: np.array([1])},
    "tuple": {"a": ("x",)},
    "complex": {"a": np.array([1 + 2j])},
    "lod": {"a": np.arange(3), "a.lod": np.array([0, 3])},
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_is_printed_as_the_original_printed_it(case: str) -> None:
    response = recorded(case)["response"]
    if case == "big":  # the recording keeps its head and its length
        body = render(ANSWERS[case], JSON).decode()
        assert len(body.encode()) == response["body_len"]
        assert body.startswith(response["body"].removesuffix("...TRUNCATED"))
        return
    expected = json.loads(response["body"])
    if expected["err_no"]:
        with pytest.raises(UnprintableAnswer) as caught:
            render(ANSWERS[case], JSON)
        assert caught.value.err_no == expected["err_no"]
        assert caught.value.message.startswith(expected["err_msg"])
        return
    assert json.loads(render(ANSWERS[case], JSON)) == expected
    message = Response.FromString(render(ANSWERS[case], PROTO))
    assert [list(message.key), list(message.value)] == [expected["key"], expected["value"]]


def test_scalars_inside_lists_and_object_arrays_print_without_their_type() -> None:
    outputs = {"a": np.array([np.float32(0.5), [np.int64(1)]], dtype=object), "b": ["x", np.float32(0.25)]}
    assert json.loads(render(outputs, JSON))["value"] == [
        "array([0.5, list([1])], dtype=object)",
        "['x', 0.25]",
    ]


def test_print_options_of_the_app_neither_reach_an_answer_nor_change_by_it() -> None:
    with np.printoptions(precision=1, threshold=2):
        before = np.get_printoptions()
        body = render({"a": np.full(3, 1 / 3)}, JSON)
        assert np.get_printoptions() == before
    assert json.loads(body)["value"] == ["array([0.33333333, 0.33333333, 0.33333333])"]


def test_hooks_print_as_under_numpy_1_in_the_thread_that_asked_for_it() -> None:
    printed: list[str] = []

    def hook() -> None:
        printed.append(str([np.float32(0.5)]))
        print_as_numpy_1()
        printed.append(str([np.float32(0.5)]))

    thread = threading.Thread(target=hook)
    thread.start()
    thread.join()
    assert printed == ["[np.float32(0.5)]", "[0.5]"]


@pytest.mark.parametrize("form", [JSON, PROTO])
def test_text_that_is_no_unicode_can_not_be_sent(form: str) -> None:
    with pytest.raises(UnprintableAnswer, match=r"rpc package error: .* surrogates not allowed") as caught:
        render({"a": "\ud800"}, form)
    assert caught.value.err_no == 8000


def test_a_refusal_carries_number_and_message_in_both_forms() -> None:
    error = ProductError("看不懂\ud800", err_no=51)
    expected = {"err_no": 51, "err_msg": "看不懂?", "key": [], "value": [], "tensors": []}
    assert json.loads(render_error(error, JSON)) == expected
    message = Response.FromString(render_error((51, "看不懂"), PROTO))
    assert (message.err_no, message.err_msg) == (51, "看不懂")


def test_a_number_that_no_message_holds_is_told_in_the_text() -> None:
    message = Response.FromString(render_error((1 << 40, "why"), PROTO))
    assert (message.err_no, message.err_msg) == (10000, "why (err_no 1099511627776)")
