"""How the app's hooks are called, in every form that Paddle Serving's versions and ours allow."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from pipeline import InvalidInput, Op, OpRequest, ProductError, RequestOp, ServingError
from pipeline.errors import ConfigError, HookFailed, ModelFailed, WrongResult
from pipeline.worker.hooks import Hooks

INPUTS = {"@DAGExecutor": {"text": "a"}}


def build_request(number: int = 7, inputs: Any = INPUTS) -> OpRequest:
    return OpRequest(inputs, number, log_id=99)


def preprocessed(op: Op, request: OpRequest | None = None) -> tuple[Any, bool]:
    hooks = Hooks(op)
    return hooks.preprocess(hooks.own_copy(), request or build_request())


def postprocessed(op: Op, fetch: Any = None) -> Any:
    hooks = Hooks(op)
    return hooks.postprocess(hooks.own_copy(), build_request(), fetch)


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


def test_hooks_with_defaults_keyword_only_arguments_or_without_self_are_given_what_they_take() -> None:
    def with_defaults(self: Op, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        return {"got": (data_id, log_id)}

    def keywords(self: Op, input_dicts: Any, *, log_id: int, data_id: int = 0) -> Any:
        return {"got": (data_id, log_id)}

    def one_keyword(self: Op, input_dicts: Any, *, log_id: int) -> Any:
        return {"got": (7, log_id)}

    def any_keyword(self: Op, input_dicts: Any, **ids: int) -> Any:
        return {"got": (ids["data_id"], ids["log_id"])}

    def two(self: Op, input_dicts: Any, data_id: int) -> Any:
        return {"got": (data_id, 99)}

    static = staticmethod(lambda input_dicts, data_id, log_id: {"got": (data_id, log_id)})
    for hook in (with_defaults, keywords, one_keyword, any_keyword, two, static):
        assert preprocessed(op_with(preprocess=hook)) == ({"got": (7, 99)}, False), hook

    def postprocess(self: Op, input_dicts: Any, fetch_dict: Any, *, log_id: int = 0) -> Any:
        return {"got": (fetch_dict, log_id)}

    assert postprocessed(op_with(postprocess=postprocess), "f") == {"got": ("f", 99)}


def test_hooks_may_be_set_on_the_op_itself() -> None:
    op = op_with()
    op.preprocess = lambda input_dicts, data_id, log_id: {"got": log_id}  # type: ignore[method-assign]
    op.process = lambda feed_batch: {"ran": feed_batch}  # type: ignore[method-assign, assignment]
    hooks = Hooks(op)
    assert preprocessed(op) == ({"got": 99}, False)
    assert hooks.own_process
    assert hooks.process(hooks.own_copy(), {"x": 1}, 0) == {"ran": [{"x": 1}]}
    assert not Hooks(op_with()).own_process


def test_a_hook_that_cannot_be_called_is_told_before_anything_is_served() -> None:
    with pytest.raises(
        ConfigError, match=r"Op some: postprocess takes \(fetch\); it is called with \(input_d"
    ):
        Hooks(op_with(postprocess=lambda self, fetch: fetch))


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


@pytest.mark.parametrize(
    ("result", "kind"),
    [(None, "NoneType"), ("text", "str"), (["a"], "list of 1"), ((["a"], None, ""), "list of 1")],
)
def test_an_output_that_is_no_dict_is_told_its_type(result: Any, kind: str) -> None:
    told = (
        rf"^\[some\] postprocess returned {kind}; expected a dict, or \(dict, prod_errcode, prod_errinfo\)$"
    )
    with pytest.raises(WrongResult, match=told) as caught:
        postprocessed(op_with(postprocess=lambda *_: result))
    assert caught.value.err_no == 7000


def test_where_postprocess_is_the_default_the_hook_before_it_is_blamed() -> None:
    with pytest.raises(WrongResult, match=r"\[some\] preprocess returned list of 2; .* override"):
        postprocessed(op_with(), [{}, {}])


@pytest.mark.parametrize("result", [7, "yes", [], {}, np.array([True, False])])
def test_check_jumping_says_true_or_false(result: Any) -> None:
    hooks = Hooks(op_with(check_jumping=lambda self, input_data: result))
    with pytest.raises(WrongResult, match=r"\[some\] check_jumping returned .*; expected True or False"):
        hooks.jump(hooks.own_copy(), build_request(), {})


@pytest.mark.parametrize(("result", "jumps"), [(True, True), (np.bool_(True), True), (None, False)])
def test_a_numpy_bool_and_none_are_taken_for_what_they_mean(result: Any, jumps: bool) -> None:
    hooks = Hooks(op_with(check_jumping=lambda self, input_data: result))
    assert hooks.jump(hooks.own_copy(), build_request(), {}) is jumps


@pytest.mark.parametrize("skip", [None, 1, "no", ["x"]])
def test_only_true_skips_the_model(skip: Any) -> None:
    assert preprocessed(op_with(preprocess=lambda *_: ({}, skip, None, ""))) == ({}, False)


@pytest.mark.parametrize("result", [None, 5, ["a"], ({"x": 1}, "ready")])
def test_a_process_that_returns_no_fetch_is_told_its_type(result: Any) -> None:
    hooks = Hooks(op_with(process=lambda self, feed_batch, typical_logid: result))
    with pytest.raises(WrongResult, match=r"\[some\] process returned \w+.*; expected a fetch dict"):
        hooks.process(hooks.own_copy(), {}, 0)


def test_a_process_of_0_5_takes_the_feeds_alone_and_its_code_is_the_clients_err_no() -> None:
    def process(self: Op, feed_batch: list[dict[str, Any]]) -> Any:
        return (None, 9001, "no card") if feed_batch == [{}] else (feed_batch[0], 0, "")

    hooks = Hooks(op_with(process=process))
    assert hooks.process(hooks.own_copy(), {"x": 1}, 0) == {"x": 1}
    with pytest.raises(ModelFailed, match=r"\[some\] failed to predict. no card. Please check") as caught:
        hooks.process(hooks.own_copy(), {}, 0)
    assert caught.value.err_no == 9001


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
        preprocessed(op_with(), build_request(inputs={"b": {}, "a": {}}))


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


class Setting(Op):
    """Sets attributes in every way that there is."""

    __slots__ = ("slotted", "unset")

    @functools.cached_property
    def cached(self) -> int:
        return 5

    @property
    def doubled(self) -> int:
        return self.half * 2

    @doubled.setter
    def doubled(self, value: int) -> None:
        self.half = value // 2

    def process(self, feed_batch: list[dict[str, Any]], typical_logid: int = 0) -> Any:
        self.same = self.same  # the value that it has, set anew
        self.slotted = 1
        self.doubled = 4
        self.gone = 3
        del self.gone
        vars(self)["past"] = "setattr"
        return {"cached": self.cached}


def test_what_process_sets_on_its_copy_is_known_however_it_is_set() -> None:
    op: Any = Setting(name="some", input_ops=[RequestOp()])
    op.same, op.other = "as ever", "untouched"
    hooks = Hooks(op)
    fetch, left = hooks.process_on_copy(op, {}, 0)
    assert fetch == {"cached": 5}
    assert left == {"same": "as ever", "slotted": 1, "half": 2, "past": "setattr", "cached": 5}
    assert not any(name in vars(op) for name in ("half", "past", "cached")) and not hasattr(op, "slotted")


def test_what_process_has_set_is_put_on_a_request_but_for_what_its_own_hook_has_set() -> None:
    op: Any = Setting(name="some", input_ops=[RequestOp()])
    hooks = Hooks(op)
    own: Any = hooks.own_copy()
    with hooks.set_attributes.on(own) as kept:
        own.number = None
        own.slotted = 0
    assert kept == {"number", "slotted"}
    hooks.set_attributes.apply(own, {"number": 7, "slotted": 7, "unset": 7, "half": 7}, kept)
    assert (own.number, own.slotted, own.unset, own.half) == (None, 0, 7, 7)
    own.later = 1
    assert kept == {"number", "slotted"}, "only what is set meanwhile"


def refuse_b(self: Op, requests: list[OpRequest]) -> list[Any]:
    if any(request.inputs["text"] == "b" for request in requests):
        raise ValueError("b can't be read")
    return [{"x": request.inputs["text"]} for request in requests]


def requests_of(texts: str) -> list[OpRequest]:
    return [build_request(i, {"@DAGExecutor": {"text": text}}) for i, text in enumerate(texts)]


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
        assert [type(one) for one in got] == [WrongResult, WrongResult]
        assert "[some] preprocess_batch returned" in got[0].message
        assert "expected a list of 1, one element for each request" in got[0].message


def test_postprocess_batch_sees_each_fetch_with_its_request_also_by_halves() -> None:
    def hook(self: Op, requests: list[OpRequest], fetches: list[Any]) -> list[Any]:
        if "b" in fetches:
            raise ValueError
        return [{"got": f"{r.inputs['text']}-{fetch}"} for r, fetch in zip(requests, fetches, strict=True)]

    hooks = Hooks(op_with(postprocess_batch=hook))
    results = hooks.postprocess_batch(requests_of("cbad"), list("cbad"))
    assert [r["got"] for i, r in enumerate(results) if i != 1] == ["c-c", "a-a", "d-d"]
    assert isinstance(results[1], ServingError)


def test_a_method_called_like_a_batch_wise_hook_beside_the_hook_of_single_requests_is_the_apps_own() -> None:
    op = op_with(
        preprocess=lambda self, input_dicts: self.preprocess_batch([input_dicts], size=1),
        preprocess_batch=lambda self, images, size: {"images": len(images) * size},
        postprocess=lambda self, input_dicts, fetch: self.postprocess_batch(fetch),
        postprocess_batch=lambda self, fetch: {"seen": fetch},
    )
    hooks, (request,) = Hooks(op), requests_of("a")
    assert (hooks.batch_preprocess, hooks.batch_postprocess) == (False, False)
    assert hooks.preprocess(op, request) == ({"images": 1}, False)
    assert hooks.postprocess(op, request, 7) == {"seen": 7}


def test_state_set_in_preprocess_batch_is_found_in_postprocess_batch() -> None:
    request = build_request()
    request.state.length = 3
    assert request.state.length == 3
    assert not hasattr(build_request().state, "length")
