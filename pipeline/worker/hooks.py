"""Calling the app's hooks of one Op, and its errors as ours."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from pipeline.api.op import Op, OpRequest
from pipeline.errors import HookFailed, ServingError, WrongResult, text_of
from pipeline.paddle_serving.channel_data import ChannelData
from pipeline.worker.hook_arguments import Arguments
from pipeline.worker.hook_results import (
    checked_output,
    of_batch_hook,
    of_check_jumping,
    of_postprocess,
    of_preprocess,
    of_process,
)
from pipeline.worker.set_attributes import SetAttributes
from pipeline.worker.traces import said_by, trace_of

log = logging.getLogger(__name__)


class Hooks:
    """The hooks of one Op, looked at once: which are overridden and which arguments each takes."""

    unpacks = False  # the output is the inputs that the app made of the message

    def __init__(self, op: Op) -> None:
        """Raises ConfigError for a hook that can't be called."""
        kind = type(op)
        self.op = op
        # Beside a hook for single requests it is a method of the app's own, from before there was this hook.
        own_postprocess = _is_own(op.postprocess, Op.postprocess)
        self.batch_preprocess = kind.preprocess_batch is not None and not _is_own(
            op.preprocess, Op.preprocess
        )
        self.batch_postprocess = kind.postprocess_batch is not None and not own_postprocess
        self.own_process = _is_own(op.process, Op.process)
        self.jumps = bool(op.jump_to_ops)
        self._preprocess = Arguments.of(op, "preprocess", ("input_dicts", "data_id", "log_id"), 1)
        self._process = Arguments.of(op, "process", ("feed_batch", "typical_logid"), 1)
        given = ("input_dicts", "fetch_dict", "data_id", "log_id")
        self._postprocess = Arguments.of(op, "postprocess", given, 2)
        makes_feed = "preprocess_batch" if self.batch_preprocess else "preprocess"
        self._makes_output = "postprocess" if own_postprocess else makes_feed
        self._copies_plainly = (
            not hasattr(kind, "__copy__")
            and kind.__getstate__ is object.__getstate__
            and kind.__reduce_ex__ is object.__reduce_ex__
            and not any("__slots__" in vars(base) for base in kind.__mro__)
        )

    def own_copy(self, of: Op | None = None) -> Op:
        """The Op, or a copy `of` it, as one request's hooks see it: what they set on `self` is its own."""
        original = self.op if of is None else of
        if not self._copies_plainly:
            return copy.copy(original)
        own: Op = object.__new__(type(original))
        own.__dict__.update(original.__dict__)
        return own

    @cached_property
    def set_attributes(self) -> SetAttributes:
        """Tells what hooks set on `self`. The Op's objects are slower to set from the first use on."""
        return SetAttributes(type(self.op))

    def preprocess(self, own: Op, request: OpRequest) -> tuple[Any, bool]:
        """The feed, or list of feeds, and whether the model is skipped. Raises ServingError."""
        given = (request.input_dicts, request.data_id, request.log_id)
        try:
            return of_preprocess(self.op.name, self._preprocess.call(own.preprocess, *given))
        except BaseException as exc:
            raise self.failure(exc, "preprocess", request) from exc

    def preprocess_batch(self, requests: Sequence[OpRequest]) -> list[Any]:
        """A feed or a ServingError for each request; one that makes the call raise is found by halves."""
        return self._by_halves("preprocess_batch", self.op.preprocess_batch, requests, None)

    def process(self, own: Op, feed: dict[str, Any], log_id: int) -> dict[str, Any]:
        """The overridden `process`; its fetch. Raises whatever the hook raises, and ServingError."""
        return of_process(self.op.name, self._process.call(own.process, [feed], log_id))

    def process_on_copy(
        self, of: Op | None, feed: dict[str, Any], log_id: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """`process` on an `own_copy`: its fetch, and what it has set on `self`. Raises as it does."""
        own = self.own_copy(of)
        with self.set_attributes.on(own) as names:
            fetch = self.process(own, feed, log_id)
        return fetch, self.set_attributes.values(own, names)

    def postprocess(self, own: Op, request: OpRequest, fetch: Any) -> Any:
        """The Op's output. Raises ServingError."""
        given = (request.input_dicts, fetch, request.data_id, request.log_id)
        try:
            result = self._postprocess.call(own.postprocess, *given)
            return of_postprocess(self.op.name, result, self._makes_output)
        except BaseException as exc:
            raise self.failure(exc, "postprocess", request) from exc

    def postprocess_batch(
        self, requests: Sequence[OpRequest], fetches: Sequence[Any], left: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """An output or a ServingError for each request. left: what `process` has set on `self` for them,
        which the hook finds there and no other request does."""
        if not left:
            return self._postprocess_batch(self.op, requests, fetches)
        lent = self.own_copy()
        self.set_attributes.put(lent, left)
        with self.set_attributes.on(lent) as names:
            outputs = self._postprocess_batch(lent, requests, fetches)
        self.set_attributes.put(self.op, self.set_attributes.values(lent, names))
        return outputs

    def _postprocess_batch(self, op: Op, requests: Sequence[OpRequest], fetches: Sequence[Any]) -> list[Any]:
        outputs = self._by_halves("postprocess_batch", op.postprocess_batch, requests, fetches)
        return [output if type(output) is dict else self._checked_or_error(output) for output in outputs]

    def jump(self, own: Op, request: OpRequest, output: Any) -> bool:
        channel_data = ChannelData(output, data_id=request.data_id, log_id=request.log_id)
        try:
            return of_check_jumping(self.op.name, own.check_jumping({request.data_id: channel_data}))
        except BaseException as exc:
            raise self.failure(exc, "check_jumping", request) from exc

    def failure(self, exc: BaseException, hook: str, request: OpRequest) -> ServingError:
        """The exception as an answer, a SystemExit too: a request ends no worker that others need. What the
        app did not do on purpose is logged, what it raised with its traceback."""
        if isinstance(exc, WrongResult):
            log.error("request %d: %s", request.data_id, exc.message)
        if isinstance(exc, ServingError):
            return exc
        trace = trace_of(exc)  # made here: logging would print its own failure instead
        log.error("request %d: %s of Op %s raised\n%s", request.data_id, hook, self.op.name, trace)
        said = text_of(exc) or type(exc).__name__ if isinstance(exc, Exception) else said_by(exc)
        return HookFailed(
            f"Log_id: {request.log_id}  Raise_msg: {said}  "
            f"ClassName: {type(self.op).__name__}  FunctionName: {hook}"
        )

    def _checked_or_error(self, output: Any) -> Any:
        if isinstance(output, ServingError):
            return output
        try:
            return checked_output(self.op.name, output, "postprocess_batch")
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
            results = of_batch_hook(self.op.name, hook, results, len(requests))
        except BaseException as exc:
            if len(requests) == 1:
                return [self.failure(exc, hook, requests[0])]
            half = len(requests) // 2
            return [
                result
                for part in (slice(half), slice(half, None))
                for result in self._by_halves(hook, function, requests[part], fetches and fetches[part])
            ]
        return [
            self.failure(result, hook, request) if isinstance(result, BaseException) else result
            for result, request in zip(results, requests, strict=True)
        ]


def _is_own(hook: Callable[..., Any], default: Callable[..., Any]) -> bool:
    """Whether the app overrides a hook, in its class or by `op.process = ...`."""
    return getattr(hook, "__func__", None) is not default
