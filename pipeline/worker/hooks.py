"""Calls the methods that the app overrides in an Op (hooks, such as preprocess), and checks their results."""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from operator import index
from pathlib import Path
from types import MemberDescriptorType, TracebackType
from typing import Any, SupportsIndex

import numpy as np

from client.protos.pipeline_service_pb2 import Request, Response
from pipeline.api.dag import MESSAGE
from pipeline.api.op import Op, OpRequest, RequestOp, ResponseOp, overrides
from pipeline.api.request_options import LogId
from pipeline.engines.feeds import LOD_SUFFIX, is_texts
from pipeline.errors import (
    BadPackage,
    ConfigError,
    HookFailed,
    ModelFailed,
    ProductError,
    ServingError,
    StartFailed,
    WrongResult,
    get_error_fields,
    get_error_text,
)
from pipeline.messages.messages import REFUSAL, Refusal
from pipeline.paddle_serving.channel_data import ChannelData
from pipeline.process.isolation import isolated
from pipeline.process.lost_device import end_if_device_is_lost
from pipeline.worker.error_log import ERRORS, record_user_place

_OURS = str(Path(__file__).resolve().parents[1]) + "/"
MAX_TRACE_CHARS = 16_000  # an exception's text may hold a whole request
_RUNNERS = ("<frozen runpy>", "<frozen importlib")


def said_by(exc: BaseException) -> str:
    """Return the class and the text of an exception. The text of a KeyError says little without the class."""
    text = get_error_text(exc)
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def format_user_traceback(exc: BaseException) -> str:
    """Return an exception's traceback as text, without the frames of this package that precede user code."""
    try:
        trace = exc.__traceback__
        while trace is not None and _leads_there(trace):
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(exc), exc, trace or exc.__traceback__)).rstrip()
    except BaseException:  # of the exception's own methods
        return f"{type(exc).__name__}, of which no traceback can be printed"
    if len(text) <= MAX_TRACE_CHARS:
        return text
    half = MAX_TRACE_CHARS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"


def format_cause(error: BaseException) -> str:
    """Return the traceback of the error's cause, or of the error itself if it has no cause.

    Empty if the error was never raised.
    """
    exc = error.__cause__ or error
    return format_user_traceback(exc) if exc.__traceback__ is not None else ""


def _leads_there(trace: TracebackType) -> bool:
    file = trace.tb_frame.f_code.co_filename
    return file.startswith((_OURS, *_RUNNERS))


_MISSING = object()


class SetAttributes:
    """Records which attributes user code sets on an Op object while the object is watched.

    An attribute may be set to its former value, which a comparison before and after would miss. So the class
    gets a `__setattr__` that records the name, around its own.
    """

    def __init__(self, kind: type[Op]) -> None:
        self._names: dict[int, set[str]] = {}  # by the id of an object while it is watched
        self._slots = frozenset(
            name
            for base in kind.__mro__
            for name, member in vars(base).items()
            if isinstance(member, MemberDescriptorType)
        )
        set_plainly, noted = kind.__setattr__, self._names

        def set_attribute(op: Op, name: str, value: Any) -> None:
            set_plainly(op, name, value)
            if (names := noted.get(id(op))) is not None:
                names.add(name)

        kind.__setattr__ = set_attribute  # type: ignore[method-assign, assignment]

    @contextmanager
    def on(self, op: Op) -> Iterator[set[str]]:
        """Watch an object within a `with` block.

        Yields the set of attribute names, complete when the block ends.
        """
        names: set[str] = set()
        before = dict(vars(op))
        self._names[id(op)] = names
        try:
            yield names
        finally:
            self._names.pop(id(op), None)
            # Past __setattr__: by `vars(self)`, as functools.cached_property does it.
            now = dict(vars(op))
            names.update(name for name, value in now.items() if before.get(name, _MISSING) is not value)

    def values(self, op: Op, names: set[str]) -> dict[str, Any]:
        """Return the object's attributes of these names, without properties and deleted attributes."""
        attributes = vars(op)
        values = {name: attributes[name] for name in names if name in attributes}
        for name in names & self._slots:
            value = getattr(op, name, _MISSING)
            if value is not _MISSING:
                values[name] = value
        return values

    def apply(self, op: Op, values: Mapping[str, Any], names_to_keep: Collection[str] = ()) -> None:
        """Set attributes on the object without calling its class, except those in `names_to_keep`."""
        for name, value in values.items():
            if name in names_to_keep:
                continue
            if name in self._slots:
                object.__setattr__(op, name, value)
            else:
                vars(op)[name] = value


_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
# What a hook may return, as its refusal says it.
_FEED = (
    "a feed dict {name: ndarray} or a list of them, or (feed, is_skip_process, prod_errcode, prod_errinfo)"
)
_OUTPUT = "a dict, or (dict, prod_errcode, prod_errinfo)"
_FETCH = "a fetch dict {name: ndarray}, or (fetch dict, err_code, err_info)"


def call_init_op(op: Op) -> None:
    """Call the Op's `init_op`. Raises StartFailed with the hook's exception and traceback.

    Raises WrongResult for an `init_op` that is `async` or has a `yield`, because calling it runs nothing.
    """
    try:
        result = op.init_op()
    except ServingError:
        raise
    except BaseException as exc:  # it may raise SystemExit as well
        raise StartFailed(
            f"init_op of Op {op.name} raised {said_by(exc)}\n{format_user_traceback(exc)}"
        ) from exc
    if inspect.isawaitable(result) or inspect.isgenerator(result):
        raise WrongResult(op.name, "init_op", result, "nothing")


class Hooks:
    """Calls the hooks of one Op: the methods for requests that the app may override, such as preprocess."""

    unpacks = False  # whether the output is a whole request, that `unpack_request_package` made of a message

    def __init__(self, op: Op) -> None:
        """Inspect the signature of each hook. Raises ConfigError for a hook that can't be called."""
        kind = type(op)
        self.op = op
        # Beside a hook for single requests it is a method of the app's own, from before there was this hook.
        own_postprocess = overrides(op, "postprocess")
        self.batch_preprocess = kind.preprocess_batch is not None and not overrides(op, "preprocess")
        self.batch_postprocess = kind.postprocess_batch is not None and not own_postprocess
        self.own_process = overrides(op, "process")
        self.jumps = bool(op.jump_to_ops)
        self._preprocess = Arguments.inspect_hook(op, "preprocess", ("input_dicts", "data_id", "log_id"), 1)
        self._process = Arguments.inspect_hook(op, "process", ("feed_batch", "typical_logid"), 1)
        argument_names = ("input_dicts", "fetch_dict", "data_id", "log_id")
        self._postprocess = Arguments.inspect_hook(op, "postprocess", argument_names, 2)
        self.streams_process = self.own_process and _is_generator(op.process)
        self.streams_postprocess = not self.batch_postprocess and _is_generator(op.postprocess)
        makes_feed = "preprocess_batch" if self.batch_preprocess else "preprocess"
        self._makes_output = "postprocess" if own_postprocess else makes_feed
        # The hook of the app that makes the feed; empty where that is what the Op is given, as it is.
        self.makes_feed = makes_feed if self.batch_preprocess or overrides(op, "preprocess") else ""
        self._copies_plainly = (
            not hasattr(kind, "__copy__")
            and kind.__getstate__ is object.__getstate__
            and kind.__reduce_ex__ is object.__reduce_ex__
            and not any("__slots__" in vars(base) for base in kind.__mro__)
        )

    def own_copy(self, of: Op | None = None) -> Op:
        """Return a copy of the Op, so that each request has its own attributes.

        of: a copy of the Op to be copied instead.
        """
        original = self.op if of is None else of
        if not self._copies_plainly:
            return copy.copy(original)
        op: Op = object.__new__(type(original))
        op.__dict__.update(original.__dict__)
        return op

    @cached_property
    def set_attributes(self) -> SetAttributes:
        """Recorder of the attributes that hooks set on `self`.

        Its first use makes setting attributes slower.
        """
        return SetAttributes(type(self.op))

    def preprocess(self, op: Op, request: OpRequest) -> tuple[Any, bool]:
        """Call preprocess. Returns the model's input, or a list of inputs, and whether the model is skipped.

        Raises ServingError.
        """
        arguments = (request.input_dicts, request.data_id, request.log_id)
        try:
            return _of_preprocess(self.op.name, self._preprocess.call_hook(op.preprocess, *arguments))
        except BaseException as exc:
            raise self.failure(exc, "preprocess", request) from exc

    def preprocess_batch(self, requests: Sequence[OpRequest]) -> list[Any]:
        """Call preprocess_batch. Returns a model input or a ServingError for each request.

        If the hook raises, it is called again with halves, until the request that makes it raise is found.
        """
        return self._by_halves("preprocess_batch", self.op.preprocess_batch, requests, None)

    def process(self, op: Op, feed: dict[str, Any], log_id: LogId) -> dict[str, Any]:
        """Call the app's own `process`, in place of inference, and return its outputs by name.

        Raises whatever the hook raises, and ServingError for a wrong result.
        """
        return _of_process(self.op.name, self._process.call_hook(op.process, [feed], log_id))

    def process_on_copy(
        self, of: Op | None, feed: dict[str, Any], log_id: LogId
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Call the app's own `process` on a copy of the Op.

        Returns its outputs by name, and the attributes that it has set on `self`.
        """
        op = self.own_copy(of)
        if self.op.sequence is True:
            op.sequence = None  # the requests of the batch have different ones
        with self.set_attributes.on(op) as names:
            fetch = self.process(op, feed, log_id)
        return fetch, self.set_attributes.values(op, names)

    @property
    def streams(self) -> bool:
        """Whether `process` or `postprocess` is a generator, so that a request can have several answers."""
        return self.streams_process or self.streams_postprocess

    def begin_process(self, op: Op, feed: dict[str, Any], log_id: LogId) -> Any:
        """Call the app's `process`, a generator function, and return its iterator."""
        return self._process.call_hook(op.process, [feed], log_id)

    def check_fetch(self, result: Any) -> dict[str, Any]:
        """Check a value that `process` has yielded, and return the outputs by name. Raises ServingError."""
        return _of_process(self.op.name, result)

    def begin_postprocess(self, op: Op, request: OpRequest, fetch: Any) -> Any:
        """Call the app's `postprocess`, a generator function, and return its iterator."""
        arguments = (request.input_dicts, fetch, request.data_id, request.log_id)
        return self._postprocess.call_hook(op.postprocess, *arguments)

    def check_output(self, result: Any) -> Any:
        """Check a value that `postprocess` has yielded, and return the Op's output. Raises ServingError."""
        return _of_postprocess(self.op.name, result, self._makes_output)

    def postprocess(self, op: Op, request: OpRequest, fetch: Any) -> Any:
        """Call postprocess with the model's outputs, and return the Op's output. Raises ServingError."""
        arguments = (request.input_dicts, fetch, request.data_id, request.log_id)
        try:
            result = self._postprocess.call_hook(op.postprocess, *arguments)
            return _of_postprocess(self.op.name, result, self._makes_output)
        except BaseException as exc:
            raise self.failure(exc, "postprocess", request) from exc

    def postprocess_batch(
        self,
        requests: Sequence[OpRequest],
        fetches: Sequence[Any],
        process_values: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call postprocess_batch. Returns an output or a ServingError for each request.

        process_values: attributes that `process` has set on `self` for these requests. The hook finds these
        attributes on `self`; no other request sees them.
        """
        if not process_values:
            return self._postprocess_batch(self.op, requests, fetches)
        lent = self.own_copy()
        self.set_attributes.apply(lent, process_values)
        with self.set_attributes.on(lent) as names:
            outputs = self._postprocess_batch(lent, requests, fetches)
        self.set_attributes.apply(self.op, self.set_attributes.values(lent, names))
        return outputs

    def _postprocess_batch(self, op: Op, requests: Sequence[OpRequest], fetches: Sequence[Any]) -> list[Any]:
        outputs = self._by_halves("postprocess_batch", op.postprocess_batch, requests, fetches)
        return [
            output if type(output) is dict else self._checked_or_error(output, request)
            for output, request in zip(outputs, requests, strict=True)
        ]

    def jump(self, op: Op, request: OpRequest, output: Any) -> bool:
        """Call check_jumping.

        Returns whether the output goes to the consumers of `jump_to_ops`, not to its own. Raises
        ServingError.
        """
        channel_data = ChannelData(output, data_id=request.data_id, log_id=request.log_id)
        try:
            return _of_check_jumping(self.op.name, op.check_jumping({request.data_id: channel_data}))
        except BaseException as exc:
            raise self.failure(exc, "check_jumping", request) from exc

    def failure(self, exc: BaseException, hook: str, request: OpRequest) -> ServingError:
        """Return the error of a request whose hook has raised an exception, and log the exception.

        A SystemExit, too, only fails the request: the worker still serves other requests. Unexpected
        exceptions are logged with their traceback at once, for the next request may end the process. The
        front process summarizes repeated exceptions from the same line.
        """
        end_if_device_is_lost(exc)
        if isinstance(exc, ServingError):
            record_user_place(exc, exc)
            return exc
        is_logged = self._log_exception(exc, hook, request)
        reason = get_error_text(exc) or type(exc).__name__ if isinstance(exc, Exception) else said_by(exc)
        failed = HookFailed(
            f"Log_id: {request.log_id}  Raise_msg: {reason}  "
            f"ClassName: {type(self.op).__name__}  FunctionName: {hook}"
        )
        failed.logged = is_logged
        record_user_place(failed, exc)
        return failed

    @isolated(False)
    def _log_exception(self, exc: BaseException, hook: str, request: OpRequest) -> bool:
        """Log an exception of a hook with its traceback. Returns whether the exception is in the log."""
        trace = format_user_traceback(exc)  # made here: logging would print its own failure instead
        message = "request %d: %s of Op %s raised\n%s"
        return ERRORS.log_error(exc, message, request.data_id, hook, self.op.name, trace)

    def _checked_or_error(self, output: Any, request: OpRequest) -> Any:
        try:
            if isinstance(output, ServingError):
                return output
            return _checked_output(self.op.name, output, "postprocess_batch")
        except BaseException as exc:  # of an object of the app's own class
            return self.failure(exc, "postprocess_batch", request)

    def _by_halves(
        self,
        hook: str,
        function: Callable[..., Any],
        requests: Sequence[OpRequest],
        fetches: Sequence[Any] | None,
    ) -> list[Any]:
        try:
            results = function(requests) if fetches is None else function(requests, fetches)
            results = _of_batch_hook(self.op.name, hook, results, len(requests))
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
            result if type(result) is dict else self._result_or_error(result, hook, request)
            for result, request in zip(results, requests, strict=True)
        ]

    def _result_or_error(self, result: Any, hook: str, request: OpRequest) -> Any:
        try:
            return self.failure(result, hook, request) if isinstance(result, BaseException) else result
        except BaseException as exc:  # isinstance asks the object, too
            return self.failure(exc, hook, request)


@dataclass(frozen=True)
class Arguments:
    """The parameters of an app's hook, and the argument passed to each parameter."""

    all: tuple[str, ...]  # the names of what there is to give
    places: tuple[int, ...]  # what each positional parameter of the hook is given, as an index into `all`
    by_name: tuple[str, ...]  # those that go by keyword

    @classmethod
    def inspect_hook(cls, op: Op, hook: str, names: tuple[str, ...], needed: int) -> Arguments:
        """Inspect a hook's signature, and return how it can be called with arguments of these names.

        The hook must accept the first `needed` arguments. It gets the other arguments if it has parameters
        for them. Hooks written for Paddle Serving up to 0.6 take no `data_id`. Raises ConfigError for a hook
        that can't be called with these arguments.
        """
        try:
            signature = inspect.signature(getattr(op, hook))
        except ValueError:  # of C; what it takes shows when it is called
            return cls(names, tuple(range(len(names))), ())
        by_name = [p for p in signature.parameters.values() if p.kind in _BY_NAME]
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in by_name)
        for count in range(len(names), needed - 1, -1):
            rest = tuple(n for n in names[count:] if takes_any or any(p.name == n for p in by_name))
            try:
                signature.bind(*names[:count], **dict.fromkeys(rest))
            except TypeError:
                continue
            return cls(names, _locate_arguments(signature, names, needed, count), rest)
        raise ConfigError(
            f"Op {op.name}: {hook} takes {signature}; it is called with ({', '.join(names)}) and may leave "
            f"out what follows {names[needed - 1]}"
        )

    def call_hook(self, hook: Callable[..., Any], *values: Any) -> Any:
        """Call the hook with the values that its parameters accept, and return its result.

        values: in the order of the names in `all`.
        """
        if len(self.places) == len(values):
            return hook(*values)
        named = {name: values[self.all.index(name)] for name in self.by_name}
        return hook(*[values[place] for place in self.places], **named)


def _locate_arguments(
    signature: inspect.Signature, names: tuple[str, ...], needed: int, count: int
) -> tuple[int, ...]:
    """Return the index of the argument that each of a hook's first `count` positional parameters gets."""
    parameters = list(signature.parameters)[:count]
    places = list(range(count))
    if count < len(names):
        places[needed:] = [
            names.index(name) if name in names[needed:] else place
            for place, name in list(enumerate(parameters))[needed:]
        ]
    return tuple(places)


def _is_generator(hook: Callable[..., Any]) -> bool:
    return inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook)


def _of_preprocess(op: str, result: Any) -> tuple[Any, bool]:
    """Unpack the result of preprocess. Returns the model's input, and whether the model is skipped.

    Raises ProductError for the app's own refusal, and HookFailed for a wrong result.
    """
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


def _of_process(op: str, result: Any) -> dict[str, Any]:
    """Unpack the result of the app's `process`. Returns the outputs by name.

    Raises ModelFailed with the hook's own code, and HookFailed for a wrong result.
    """
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


def _of_postprocess(op: str, result: Any, made_by: str) -> Any:
    """Unpack the result of a hook that makes the Op's output, and return the output.

    made_by: name of the hook. Raises ProductError for the app's own refusal, and HookFailed for a wrong
    result.
    """
    if isinstance(result, tuple):
        if len(result) != 3:
            raise _of_another_length(op, "postprocess", result, _OUTPUT)
        result, code, info = result
        if code is not None:
            raise product_error(code, info)
    return _checked_output(op, result, made_by)


def _checked_output(op: str, output: Any, hook: str) -> Any:
    """Return a hook's output unchanged.

    Raises WrongResult, with the hook's name, if the output is not a dict.
    """
    if isinstance(output, dict):
        return output
    raise WrongResult(op, hook, output, _OUTPUT if "post" in hook else "a dict, or override postprocess")


def _of_check_jumping(op: str, result: Any) -> bool:
    """Return the result of check_jumping as a bool. Raises WrongResult for other types."""
    if result is None or isinstance(result, bool | np.bool_):
        return bool(result)
    raise WrongResult(op, "check_jumping", result, "True or False")


def _of_batch_hook(op: str, hook: str, results: Any, requests: int) -> list[Any]:
    """Check the result of a hook for a whole batch: a list with an element per request.

    Raises WrongResult.
    """
    if isinstance(results, list) and len(results) == requests:
        return results
    raise WrongResult(op, hook, results, f"a list of {requests}, one element for each request")


def wrong_feed(op: str, hook: str, feed: Any, *, arrays: bool) -> WrongResult | None:
    """Return the error in a model input (feed) that a hook has returned; None if it is valid.

    A feed is a dict or a list of dicts. With `arrays` only a dict of ndarrays is valid.
    """
    for single_feed in feed if isinstance(feed, list) else (feed,):
        if not isinstance(single_feed, dict):
            return WrongResult(op, hook, feed, _FEED)
        for name, value in single_feed.items():
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
    """Return the end of an error message: how to make an array of a value; empty if unknown."""
    if callable(getattr(value, "numpy", None)):  # a tensor of Paddle or PyTorch
        return "; call its .numpy()"
    return "; np.array(...) makes one of it" if isinstance(value, list | tuple | int | float) else ""


def product_error(code: Any, info: Any) -> ServingError:
    """Return the error by which an app refuses a request, with its own code and text.

    If the code is no int or the text no str, the error is the same as in Paddle Serving, whose protobuf
    message refused them.
    """
    if type(code) is int and isinstance(info, str):
        return ProductError(info, code)
    wrong = f"{code!r} has type {type(code).__name__}, but expected one of: int"
    if type(code) is int:
        wrong = f"{info!r} has type {type(info).__name__}, but expected one of: bytes, unicode"
    error = ProductError(f"rpc package error: {wrong}", 8000)
    error.http_status = 500
    return error


def package_error(failure: ServingError, exc: BaseException) -> ServingError:
    """Return the error of a request whose unpack_request_package or pack_response_package has raised `exc`.

    Paddle Serving reports all exceptions of these two hooks with one error number. An exception with an error
    number of its own keeps that number.
    """
    if failure is exc:
        return failure
    error = HookFailed(f"rpc package error: {failure.message}")
    error.err_no, error.logged = BadPackage.err_no, failure.logged
    error.user_place = failure.user_place
    return error


def _of_another_length(op: str, hook: str, result: tuple[Any, ...], expected: str) -> HookFailed:
    """Return the error of a hook whose result is a tuple of a wrong length.

    expected: describes the right result.
    """
    error = WrongResult(op, hook, result, expected)
    error.err_no = HookFailed.err_no  # Paddle Serving could not unpack it, and called that an unknown error
    return error


_INT64 = range(-(1 << 63), 1 << 63)


def get_hooks(op: Op) -> Hooks:
    """Return the object that calls an Op's hooks.

    RequestOp and ResponseOp, the first and last Op of the graph, have other hooks.
    """
    if isinstance(op, RequestOp):
        return RequestHooks(op)
    return ResponseHooks(op) if isinstance(op, ResponseOp) else Hooks(op)


class RequestHooks(Hooks):
    """Hooks of a RequestOp: `preprocess` calls unpack_request_package, which reads the client's message.

    No other hook is called.
    """

    unpacks = True

    def preprocess(self, op: Op, request: OpRequest) -> tuple[Any, bool]:
        assert isinstance(op, RequestOp)
        message = Request.FromString(request.input_dicts[MESSAGE][MESSAGE])
        try:
            inputs, log_id, code, info = _unpacked(op.unpack_request_package(message), message.logid)
        except BaseException as exc:
            raise package_error(self.failure(exc, "unpack_request_package", request), exc) from exc
        if code is not None:
            raise product_error(code, info)
        if not isinstance(inputs, dict):
            raise self._wrong(inputs, "a dict of inputs by name, or (dict, log_id, None, '')")
        request.log_id = self._checked_log_id(log_id)
        return inputs, True

    def postprocess(self, op: Op, request: OpRequest, fetch: Any) -> Any:
        return fetch

    def _checked_log_id(self, log_id: Any) -> LogId:
        """Return the log id of unpack_request_package for the Ops. Raises WrongResult for other types."""
        if isinstance(log_id, str | float | None):
            return log_id
        if isinstance(log_id, SupportsIndex) and index(log_id) in _INT64:
            return index(log_id)
        raise self._wrong(log_id, "a 64-bit integer, a float, a str or None", part=" as log_id")

    def _wrong(self, returned: Any, expected: str, part: str = "") -> WrongResult:
        return WrongResult(self.op.name, "unpack_request_package", returned, expected, part=part)


class ResponseHooks(Hooks):
    """Hooks of a ResponseOp: `preprocess` calls pack_response_package, which makes the client's response.

    No other hook is called.
    """

    def preprocess(self, op: Op, request: OpRequest) -> tuple[Any, bool]:
        """Call pack_response_package. Returns its message, and True: there is no model to run.

        A message with an err_no and without values is raised as an error.
        """
        assert isinstance(op, ResponseOp)
        ((name, value),) = request.input_dicts.items()
        refusal = Refusal(*value).error() if name == REFUSAL else None
        try:
            response = op.pack_response_package(_channel_data(value, request, refusal))
        except BaseException as exc:
            raise package_error(self.failure(exc, "pack_response_package", request), exc) from exc
        if not isinstance(response, Response):
            expected = "a Response of pipeline_service_pb2"
            raise WrongResult(self.op.name, "pack_response_package", response, expected)
        if response.err_no and not response.key and not response.value and not response.tensors:
            error = refusal or product_error(response.err_no, "")
            error.err_no, error.args = response.err_no, (response.err_msg,)
            raise error
        return response, True

    def postprocess(self, op: Op, request: OpRequest, fetch: Any) -> Any:
        return fetch


def _unpacked(result: Any, log_id: LogId) -> tuple[Any, Any, Any, Any]:
    """Return the result of `unpack_request_package` as (inputs, log_id, prod_errcode, prod_errinfo).

    Hooks written for Paddle Serving 0.5 return no log_id: then the log_id of the message is used.
    """
    if not isinstance(result, tuple):
        return result, log_id, None, ""
    if len(result) == 3:
        return result[0], log_id, result[1], result[2]
    inputs, own_log_id, code, info = result
    return inputs, own_log_id, code, info


def _channel_data(value: Any, request: OpRequest, refusal: ServingError | None) -> ChannelData:
    if refusal is None:
        return ChannelData(value, data_id=request.data_id, log_id=request.log_id)
    code, _, _, info = get_error_fields(refusal)
    return ChannelData.of_refusal(code, info, data_id=request.data_id, log_id=request.log_id)
