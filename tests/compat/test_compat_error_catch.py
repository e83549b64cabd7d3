"""`@ErrorCatch`, `@ParamChecker` and `ParamVerify` of `paddle_serving_server.pipeline.error_catch`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import pytest

from paddle_serving_server.pipeline.error_catch import (
    CustomException,
    CustomExceptionCode,
    ErrorCatch,
    ParamChecker,
    ParamVerify,
)
from pipeline.errors import InvalidInput


class OwnCode(enum.Enum):
    TOO_DARK = 51


@ErrorCatch
def divide(number: int, by: int, log_id: int = 0) -> float:
    if by == 1:
        raise CustomException(OwnCode.TOO_DARK, "the image: is too dark")
    if by == 2:
        raise InvalidInput("'by' is 2")
    return number / by


def test_a_caught_function_returns_its_result_with_an_empty_response() -> None:
    result, response = divide(8, 4)
    assert (result, response.err_no, response.err_msg) == (2.0, 0, "")
    assert divide.__name__ == "divide"


@pytest.mark.parametrize(
    ("by", "err_no", "text"),
    [(0, 10000, "division by zero"), (1, 51, "the image: is too dark"), (2, 5000, "'by' is 2")],
)
def test_what_it_raises_becomes_a_response_with_the_error_and_the_log_id(
    by: int, err_no: int, text: str
) -> None:
    result, response = divide(8, by, log_id=12)
    assert result is None
    assert response.err_no == err_no
    assert response.err_msg == f"Log_id: 12  Raise_msg: {text}  ClassName: divide  FunctionName: divide"


def test_the_log_id_of_a_batch_is_that_of_the_request() -> None:
    @ErrorCatch
    def run(logid_dict: dict[int, int], data_id: int) -> None:
        raise ValueError

    _, response = run(logid_dict={3: 77}, data_id=3)
    assert response.err_msg.startswith("Log_id: 77 ")


def positive(value: Any) -> bool:
    return ParamVerify.int_check(value, 1, 100)


@ParamChecker
def resize(width: positive, scale: (int, float), *more: int, mode: None = None, name="x") -> (int, float):  # type: ignore
    return width * scale if name == "x" else name


def test_arguments_that_fit_their_annotations_are_let_through() -> None:
    assert resize(3, scale=0.5) == 1.5
    assert resize(3, 2, 1, 1) == 6


@pytest.mark.parametrize(
    ("arguments", "invalid"),
    [((0, 1), ["width"]), (("3", "4"), ["width", "scale"]), ((3, None), ["scale"])],
    ids=str,
)
def test_those_that_do_not_are_named(arguments: tuple[Any, ...], invalid: list[str]) -> None:
    with pytest.raises(CustomException) as caught:
        resize(*arguments)
    assert (caught.value.err_no, caught.value.message) == (5000, f"invalid arg list: {invalid}")


def test_a_result_that_does_not_fit_is_refused_and_both_decorators_go_together() -> None:
    _, response = ErrorCatch(resize)(3, 1, mode="fast")
    assert "invalid arg list: ['mode']" in response.err_msg
    _, response = ErrorCatch(resize)(3, 1, name="a name")
    assert response.err_no == CustomExceptionCode.INPUT_PARAMS_ERROR.value
    assert "invalid return type" in response.err_msg


def test_the_checks_know_files_feeds_fetches_and_shapes(tmp_path: Path) -> None:
    assert ParamVerify.file_check(str(tmp_path))
    assert not ParamVerify.file_check(str(tmp_path / "absent"))
    assert not ParamVerify.int_check("3")
    assert not ParamVerify.int_check(101, 1, 100)
    assert ParamVerify.check_feed_dict({"words": 1, "words.lod": 2}, ["words"])
    assert not ParamVerify.check_feed_dict({"words": 1, "more": 2}, ["words"])
    assert not ParamVerify.check_feed_dict(["words"], ["words"])
    assert ParamVerify.check_fetch_list(["a"], ["a", "b"])
    assert not ParamVerify.check_fetch_list(["c"], ["a", "b"])
    assert ParamVerify.check_dynamic_shape_info({})
    assert not ParamVerify.check_dynamic_shape_info({"min_input_shape": {}})
