"""How the app's hooks are called, in every form that Paddle Serving's versions and ours allow."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline import InvalidInput, Op, OpRequest, ProductError, RequestOp, ServingError
from pipeline.errors import HookFailed, UnprintableAnswer
from pipeline.worker.hooks import Hooks

INPUTS = {"@DAGExecutor": {"text": "a"}}


def request_of(number: int = 7, inputs: Any = INPUTS) -> OpRequest:
    return OpRequest(inputs, number, log_id=99)


def preprocessed(op: Op, request: OpRequest | None = None) -> tuple[Any, bool]:
    hooks = Hooks(op)
    return hooks.preprocess(hooks.own_copy(), request or request_of())


def postprocessed(op: Op, fetch: Any = None) -> Any:
    hooks = Hooks(op)
    return hooks.postprocess(hooks.own_copy(), request_of(), fetch)


def op_with(**hooks: Any) -> Op:
    kind = type("SomeOp", (Op,), hooks)
    made: Op = kind(name="some", input_ops=[RequestOp()])
    return made


def test_hooks_of_0_6_take_the_inputs_alone_and_later_ones_two_ids_more() -> None:
    old = op_with(preprocess=lambda self, input_dicts: {"got": (input_dicts,)})
    new = op_with(
        preprocess=lambda self, input_dicts, data_id, log_id: {"got": (input_dicts, data_id, log_id)}
    )
    star = op_with(preprocess=lambda self, *arguments: {"got": arguments})
    assert preprocessed(old) == ({"got": (INPUTS,)}, False)
    assert preprocessed(new) == ({"got": (INPUTS, 7, 99)}, False)
    assert preprocessed(star) == ({"got": (INPUTS, 7, 99)}, False)


def test_postprocess_of_0_6_and_later() -> None:
    old = op_with(postprocess=lambda self, input_dicts, fetch: {"got": (fetch,)})
    new = op_with(
        postprocess=lambda self, input_dicts, fetch, data_id, log_id: {"got": (fetch, data_id, log_id)}
    )
    assert postprocessed(old, "f") == {"got": ("f",)}
    assert postprocessed(new, "f") == {"got": ("f", 7, 99)}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"x": 1}, ({"x": 1}, False)),
        (({"x": 1}, False, None, ""), ({"x": 1}, False)),
        (({"x": 1}, True, None, ""), ({"x": 1}, True)),
        (({"x": 1}, None, ""), ({"x": 1}, False)),
        (([{"x": 1}, {"x": 2}], False, None, ""), ([{"x": 1}, {"x": 2}], False)),
    ],
    ids=["plain", "a tuple of four", "skipping the model", "a tuple of three", "a mini-batch"],
)
def test_preprocess_may_return_a_feed_or_a_tuple(result: Any, expected: Any) -> None:
    assert preprocessed(op_with(preprocess=lambda *_: result)) == expected


@pytest.mark.parametrize("result", [{"x": "1"}, ({"x": "1"}, None, "")], ids=["plain", "tuple"])
def test_postprocess_may_return_a_dict_or_a_tuple(result: Any) -> None:
    assert postprocessed(op_with(postprocess=lambda *_: result)) == {"x": "1"}


@pytest.mark.parametrize("hook", ["preprocess", "postprocess"])
def test_a_product_code_is_the_apps_own_refusal(hook: str) -> None:
    returned = (None, False, 51, "no text") if hook == "preprocess" else (None, 51, "no text")
    with pytest.raises(ProductError, match="no text") as caught:
        (preprocessed if hook == "preprocess" else postprocessed)(op_with(**{hook: lambda *_: returned}))
    assert (caught.value.err_no, caught.value.http_status) == (51, 400)


def test_the_code_0_is_a_code() -> None:
    with pytest.raises(ProductError) as caught:
        preprocessed(op_with(preprocess=lambda *_: ({}, False, 0, "")))
    assert caught.value.err_no == 0


@pytest.mark.parametrize("result", [({}, 1), (), ({}, False, None, "", 5)])
def test_a_tuple_of_another_length_fails_the_request(result: Any) -> None:
    with pytest.raises(HookFailed, match="preprocess"):
        preprocessed(op_with(preprocess=lambda *_: result))


@pytest.mark.parametrize("result", [None, "text", ["a"], (["a"], None, "")])
def test_an_output_that_is_no_dict_is_told_its_type(result: Any) -> None:
    with pytest.raises(UnprintableAnswer, match="postprocess should return dict"):
        postprocessed(op_with(postprocess=lambda *_: result))


def test_a_raised_serving_error_is_the_answer_and_any_other_names_op_and_hook() -> None:
    def refuse(*_: Any) -> Any:
        raise InvalidInput("too long")

    def fail(*_: Any) -> Any:
        raise KeyError("label")

    with pytest.raises(InvalidInput, match="too long"):
        preprocessed(op_with(preprocess=refuse))
    with pytest.raises(HookFailed, match="Raise_msg: 'label'  ClassName: SomeOp  FunctionName: postprocess"):
        postprocessed(op_with(postprocess=fail))


def test_the_default_preprocess_passes_the_only_input_on_and_refuses_several() -> None:
    assert preprocessed(op_with()) == ({"text": "a"}, False)
    with pytest.raises(InvalidInput, match=r"\['a', 'b'\]"):
        preprocessed(op_with(), request_of(inputs={"b": {}, "a": {}}))


def test_each_request_has_a_copy_of_the_op_and_shares_what_init_op_set() -> None:
    op = op_with()
    op.vocabulary = ["shared"]
    hooks = Hooks(op)
    one, other = hooks.own_copy(), hooks.own_copy()
    one.own = 1
    assert not hasattr(other, "own") and not hasattr(op, "own")
    assert one.vocabulary is other.vocabulary is op.vocabulary
    assert type(one) is type(op)


def test_an_op_that_copies_itself_in_its_own_way_or_has_slots_is_copied_so() -> None:
    class Counting(Op):
        copies = 0

        def __copy__(self) -> Op:
            Counting.copies += 1
            return self

    class Slotted(Op):
        __slots__ = ("vocabulary",)

    Hooks(Counting(name="a", input_ops=[RequestOp()])).own_copy()
    assert Counting.copies == 1
    slotted = Slotted(name="a", input_ops=[RequestOp()])
    slotted.vocabulary = ["a"]
    assert Hooks(slotted).own_copy().vocabulary == ["a"]


def refuse_b(self: Op, requests: list[OpRequest]) -> list[Any]:
    if any(request.inputs["text"] == "b" for request in requests):
        raise ValueError("b can't be read")
    return [{"x": request.inputs["text"]} for request in requests]


def requests_of(texts: str) -> list[OpRequest]:
    return [request_of(i, {"@DAGExecutor": {"text": text}}) for i, text in enumerate(texts)]


def test_a_batch_hook_that_raises_is_traced_to_its_request() -> None:
    results = Hooks(op_with(preprocess_batch=refuse_b)).preprocess_batch(requests_of("aacbad"))
    assert [result.get("x") if isinstance(result, dict) else type(result) for result in results] == [
        "a", "a", "c", HookFailed, "a", "d",
    ]  # fmt: skip
    assert "b can't be read" in results[3].message


def test_a_batch_hook_may_refuse_one_request_by_returning_an_exception() -> None:
    def hook(self: Op, requests: list[OpRequest]) -> list[Any]:
        return [InvalidInput("empty"), ValueError("odd"), {"x": 1}]

    refused, failed, feed = Hooks(op_with(preprocess_batch=hook)).preprocess_batch(requests_of("abc"))
    assert isinstance(refused, InvalidInput)
    assert isinstance(failed, HookFailed)
    assert feed == {"x": 1}


@pytest.mark.parametrize("results", [[], [{}], [{}] * 3, None, 5])
def test_a_batch_hook_that_returns_another_number_of_results_answers_nobody_wrongly(results: Any) -> None:
    hooks = Hooks(op_with(preprocess_batch=lambda self, requests: results))
    got = hooks.preprocess_batch(requests_of("ab"))
    if results == [{}]:  # asked again for each alone, it returns one for each
        assert got == [{}, {}]
    else:
        assert [type(one) for one in got] == [HookFailed, HookFailed]


def test_postprocess_batch_sees_each_fetch_with_its_request_also_by_halves() -> None:
    def hook(self: Op, requests: list[OpRequest], fetches: list[Any]) -> list[Any]:
        if "b" in fetches:
            raise ValueError
        return [{"got": f"{r.inputs['text']}-{fetch}"} for r, fetch in zip(requests, fetches, strict=True)]

    hooks = Hooks(op_with(postprocess_batch=hook))
    results = hooks.postprocess_batch(requests_of("cbad"), list("cbad"))
    assert [r["got"] for i, r in enumerate(results) if i != 1] == ["c-c", "a-a", "d-d"]
    assert isinstance(results[1], ServingError)


def test_state_set_in_preprocess_batch_is_found_in_postprocess_batch() -> None:
    request = request_of()
    request.state.length = 3
    assert request.state.length == 3
    assert not hasattr(request_of().state, "length")
