"""Calling the app's hooks: argument lists of 0.6 and 0.7-0.9, tuples or plain results, errors as ours."""

from __future__ import annotations

import copy
import inspect
import logging
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.channel_data import ChannelData
from pipeline.errors import HookFailed, ModelFailed, ProductError, ServingError, UnprintableAnswer, text_of
from pipeline.op import Op, OpRequest

log = logging.getLogger(__name__)


class Hooks:
    """The hooks of one Op, looked at once: which are overridden and how many arguments each takes."""

    unpacks = False  # the output is the inputs that the app made of the message

    def __init__(self, op: Op) -> None:
        kind = type(op)
        self.op = op
        self.batch_preprocess = kind.preprocess_batch is not None
        self.batch_postprocess = kind.postprocess_batch is not None
        self.own_process = kind.process is not Op.process
        self.jumps = bool(op.jump_to_ops)
        self._preprocess_ids = _takes(op.preprocess, 3)
        self._postprocess_ids = _takes(op.postprocess, 4)
        self._copies_plainly = (
            not hasattr(kind, "__copy__")
            and kind.__getstate__ is object.__getstate__
            and kind.__reduce_ex__ is object.__reduce_ex__
            and not any("__slots__" in vars(base) for base in kind.__mro__)
        )

    def own_copy(self) -> Op:
        """The Op as one request's hooks see it: what they set on `self` is the request's own."""
        if not self._copies_plainly:
            return copy.copy(self.op)
        own: Op = object.__new__(type(self.op))
        own.__dict__.update(self.op.__dict__)
        return own

    def preprocess(self, own: Op, request: OpRequest) -> tuple[Any, bool]:
        """The feed, or list of feeds, and whether the model is skipped. Raises ServingError."""
        try:
            if self._preprocess_ids:
                result = own.preprocess(request.input_dicts, request.data_id, request.log_id)
            else:
                result = own.preprocess(request.input_dicts)
            feed, skip, code, info = _four(result)
        except Exception as exc:
            raise self.failure(exc, "preprocess", request) from exc
        if code is not None:
            raise product_error(code, info)
        return feed, bool(skip)

    def preprocess_batch(self, requests: Sequence[OpRequest]) -> list[Any]:
        """A feed or a ServingError for each request; one that makes the call raise is found by halves."""
        return self._by_halves("preprocess_batch", self.op.preprocess_batch, requests, None)

    def process(self, feed: dict[str, Any], log_id: int) -> Any:
        """The overridden `process`; its fetch. Raises ServingError."""
        result = self.op.process([feed], log_id)
        if not isinstance(result, tuple):
            return result
        fetch, code, info = result
        if code:  # 0 and None both say that all is well
            raise ModelFailed(f"[{self.op.name}] process failed with {code}: {info}")
        return fetch

    def postprocess(self, own: Op, request: OpRequest, fetch: Any) -> Any:
        """The Op's output. Raises ServingError."""
        try:
            if self._postprocess_ids:
                result = own.postprocess(request.input_dicts, fetch, request.data_id, request.log_id)
            else:
                result = own.postprocess(request.input_dicts, fetch)
            output, code, info = result if isinstance(result, tuple) else (result, None, "")
        except Exception as exc:
            raise self.failure(exc, "postprocess", request) from exc
        if code is not None:
            raise product_error(code, info)
        return self._checked_output(output, "postprocess")

    def postprocess_batch(self, requests: Sequence[OpRequest], fetches: Sequence[Any]) -> list[Any]:
        """An output or a ServingError for each request."""
        outputs = self._by_halves("postprocess_batch", self.op.postprocess_batch, requests, fetches)
        return [self._checked_or_error(output) for output in outputs]

    def jump(self, own: Op, request: OpRequest, output: Any) -> bool:
        channel_data = ChannelData(output, data_id=request.data_id, log_id=request.log_id)
        try:
            return bool(own.check_jumping({request.data_id: channel_data}))
        except Exception as exc:
            raise self.failure(exc, "check_jumping", request) from exc

    def failure(self, exc: Exception, hook: str, request: OpRequest) -> ServingError:
        """The exception as an answer; what the app did not raise on purpose is logged with its traceback."""
        if isinstance(exc, ServingError):
            return exc
        trace = "".join(traceback.format_exception(exc))  # here: logging would print its own failure instead
        log.error("request %d: %s of Op %s raised\n%s", request.data_id, hook, self.op.name, trace)
        return HookFailed(
            f"Log_id: {request.log_id}  Raise_msg: {text_of(exc)}  "
            f"ClassName: {type(self.op).__name__}  FunctionName: {hook}"
        )

    def _checked_output(self, output: Any, hook: str) -> Any:
        if isinstance(output, dict):
            return output
        raise UnprintableAnswer(
            f"[{self.op.name}] {hook} should return dict of str or ndarray, not {type(output).__name__}"
        )

    def _checked_or_error(self, output: Any) -> Any:
        try:
            return (
                output
                if isinstance(output, ServingError)
                else self._checked_output(output, "postprocess_batch")
            )
        except ServingError as exc:
            return exc

    def _by_halves(
        self,
        hook: str,
        function: Callable[..., Any],
        requests: Sequence[OpRequest],
        fetches: Sequence[Any] | None,
    ) -> list[Any]:
        try:
            results = function(requests) if fetches is None else function(requests, fetches)
            if len(results) != len(requests):
                raise TypeError(f"{hook} returned {len(results)} results for {len(requests)} requests")
        except Exception as exc:
            if len(requests) == 1:
                return [self.failure(exc, hook, requests[0])]
            half = len(requests) // 2
            return [
                result
                for part in (slice(half), slice(half, None))
                for result in self._by_halves(hook, function, requests[part], fetches and fetches[part])
            ]
        return [
            self.failure(result, hook, request) if isinstance(result, Exception) else result
            for result, request in zip(results, requests, strict=True)
        ]


def _takes(hook: Callable[..., Any], count: int) -> bool:
    """Whether the bound hook can be called with `count` positional arguments."""
    try:
        inspect.signature(hook).bind(*range(count))
    except TypeError:
        return False
    return True


def _four(result: Any) -> tuple[Any, Any, Any, Any]:
    if not isinstance(result, tuple):
        return result, False, None, ""
    if len(result) == 3:  # (feed, prod_errcode, prod_errinfo), as 0.5 had it
        return result[0], False, result[1], result[2]
    feed, skip, code, info = result
    return feed, skip, code, info


def product_error(code: Any, info: Any) -> ServingError:
    if type(code) is not int or not isinstance(info, str):
        wrong = f"{code!r} has type {type(code).__name__}, but expected one of: int"
        if type(code) is int:
            wrong = f"{info!r} has type {type(info).__name__}, but expected one of: bytes, unicode"
        error = ProductError(f"rpc package error: {wrong}", 8000)
        error.http_status = 500
        return error
    return ProductError(info, code)
