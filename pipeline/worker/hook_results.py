"""What a hook may return; an error names the Op, the hook, the type returned and what was expected."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from pipeline.engines.base import LOD_SUFFIX, is_texts
from pipeline.errors import HookFailed, ModelFailed, ProductError, ServingError, WrongResult

_FEED = (
    "a feed dict {name: ndarray} or a list of them, or (feed, is_skip_process, prod_errcode, prod_errinfo)"
)
_OUTPUT = "a dict, or (dict, prod_errcode, prod_errinfo)"
_FETCH = "a fetch dict {name: ndarray}, or (fetch dict, err_code, err_info)"


def of_init_op(op: str, result: Any) -> None:
    """Raises WrongResult where the hook has not run at all: `async def init_op`, or one with a `yield`."""
    if inspect.isawaitable(result) or inspect.isgenerator(result):
        raise WrongResult(op, "init_op", result, "nothing")


def of_preprocess(op: str, result: Any) -> tuple[Any, bool]:
    """The feed and whether the model is skipped. Raises ProductError and HookFailed."""
    if not isinstance(result, tuple):
        return result, False
    if len(result) == 3:  # (feed, prod_errcode, prod_errinfo), as 0.5 had it
        result = (result[0], False, *result[1:])
    if len(result) != 4:
        raise _of_another_length(op, "preprocess", result, _FEED)
    feed, skip, code, info = result
    if code is not None:
        raise product_error(code, info)
    return feed, isinstance(skip, bool | np.bool_) and bool(skip)


def of_process(op: str, result: Any) -> dict[str, Any]:
    """The fetch. Raises ModelFailed with the hook's own code, and HookFailed."""
    if isinstance(result, tuple):
        if len(result) != 3:
            raise _of_another_length(op, "process", result, _FETCH)
        result, code, info = result
        if code:  # 0 and None both say that all is well
            error = ModelFailed(f"[{op}] failed to predict. {info}. Please check the input dict and the log")
            error.err_no = code
            raise error
    if not isinstance(result, dict):
        raise WrongResult(op, "process", result, _FETCH)
    return result


def of_postprocess(op: str, result: Any, made_by: str) -> Any:
    """The Op's output, which `made_by` made. Raises ProductError and HookFailed."""
    if isinstance(result, tuple):
        if len(result) != 3:
            raise _of_another_length(op, "postprocess", result, _OUTPUT)
        result, code, info = result
        if code is not None:
            raise product_error(code, info)
    return checked_output(op, result, made_by)


def checked_output(op: str, output: Any, hook: str) -> Any:
    """Raises WrongResult for an output that is no dict."""
    if isinstance(output, dict):
        return output
    raise WrongResult(op, hook, output, _OUTPUT if "post" in hook else "a dict, or override postprocess")


def of_check_jumping(op: str, result: Any) -> bool:
    if result is None or isinstance(result, bool | np.bool_):
        return bool(result)
    raise WrongResult(op, "check_jumping", result, "True or False")


def of_batch_hook(op: str, hook: str, results: Any, requests: int) -> list[Any]:
    if isinstance(results, list) and len(results) == requests:
        return results
    raise WrongResult(op, hook, results, f"a list of {requests}, one element for each request")


def wrong_feed(op: str, hook: str, feed: Any, *, arrays: bool) -> WrongResult | None:
    """What is wrong with a feed: it is a dict or a list of them, for a predictor a dict of ndarrays."""
    for one in feed if isinstance(feed, list) else (feed,):
        if not isinstance(one, dict):
            return WrongResult(op, hook, feed, _FEED)
        for name, value in one.items():
            if arrays and not isinstance(name, str):
                return WrongResult(op, hook, name, "a str", part=f" {name!r} as the name of a feed")
            if (
                arrays
                and not isinstance(value, np.ndarray)
                and not is_texts(value)
                and not name.endswith(LOD_SUFFIX)
            ):
                return WrongResult(op, hook, value, f"an ndarray{_remedy(value)}", part=f" as feed {name!r}")
    return None


def _remedy(value: Any) -> str:
    """How an array is made of what should have been one."""
    if callable(getattr(value, "numpy", None)):  # a tensor of Paddle or PyTorch
        return "; call its .numpy()"
    return "; np.array(...) makes one of it" if isinstance(value, list | tuple | int | float) else ""


def product_error(code: Any, info: Any) -> ServingError:
    """The app's own refusal; numbers and texts of another type are the message's error, as they were."""
    if type(code) is int and isinstance(info, str):
        return ProductError(info, code)
    wrong = f"{code!r} has type {type(code).__name__}, but expected one of: int"
    if type(code) is int:
        wrong = f"{info!r} has type {type(info).__name__}, but expected one of: bytes, unicode"
    error = ProductError(f"rpc package error: {wrong}", 8000)
    error.http_status = 500
    return error


def _of_another_length(op: str, hook: str, result: tuple[Any, ...], expected: str) -> HookFailed:
    error = WrongResult(op, hook, result, expected)
    error.err_no = HookFailed.err_no  # Paddle Serving could not unpack it, and called that an unknown error
    return error
