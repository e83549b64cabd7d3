"""Paddle Serving 0.9's error numbers, the exception that reports one, and argument-checking decorators."""

from __future__ import annotations

import enum
import functools
import inspect
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pipeline.errors import ServingError, get_error_fields, get_error_text

if TYPE_CHECKING:
    from client.protos.pipeline_service_pb2 import Response

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)

_STATUS = {3002: (404, "NOT_FOUND"), 5000: (400, "INVALID_ARGUMENT"), 6000: (504, "DEADLINE_EXCEEDED")}
_PRODUCT_ERRORS = range(50, 100)
_SHAPE_KEYS = frozenset(("min_input_shape", "max_input_shape", "opt_input_shape"))


class CustomExceptionCode(enum.Enum):
    """Error numbers (err_no) in answers: 50 to 99 are raised by the app, other numbers by the service."""

    OK = 0
    PRODUCT_ERROR = 50
    NOT_IMPLEMENTED = 3000
    CLOSED_ERROR = 3001
    NO_SERVICE = 3002
    INIT_ERROR = 3003
    CONF_ERROR = 4000
    INPUT_PARAMS_ERROR = 5000
    TIMEOUT = 6000
    TYPE_ERROR = 7000
    RPC_PACKAGE_ERROR = 8000
    CLIENT_ERROR = 9000
    UNKNOW = 10000


class ProductErrCode(enum.Enum):
    """Base class for an app's enumeration of its own error numbers."""


class CustomException(ServingError):
    """Raised by app code to refuse a request with an error number and a message.

    exceptionCode: an enumeration member, or its number, which determines the HTTP and gRPC status; an app's
    own number gives HTTP 400. isSendToUser: has no effect. In Paddle Serving, False ended the whole service;
    here only the request is refused.
    """

    def __init__(self, exceptionCode: enum.Enum | int, errorMsg: str, isSendToUser: bool = False) -> None:
        super().__init__(errorMsg)
        number = exceptionCode.value if isinstance(exceptionCode, enum.Enum) else exceptionCode
        self.err_no = int(number)
        product = (400, "INVALID_ARGUMENT") if self.err_no in _PRODUCT_ERRORS else (500, "INTERNAL")
        self.http_status, self.grpc_code = _STATUS.get(self.err_no, product)
        self.error_info = (
            f"\n\texception_code: {self.err_no}\n\texception_type: {getattr(exceptionCode, 'name', '')}"
            f"\n\terror_msg: {errorMsg}\n\tis_send_to_user: {isSendToUser}"
        )

    def __str__(self) -> str:
        return self.error_info


def ErrorCatch(function: Callable[P, R]) -> Callable[P, tuple[R | None, Response]]:
    """Decorator that makes a function return `(result, Response)`, and catch its exceptions.

    After an exception, the function returns `(None, Response)` with the exception's err_no, or 10000 if it
    has no number. The traceback is logged. The log_id in err_msg comes from the keyword argument `log_id`, or
    from `logid_dict` by the keyword argument `data_id`.
    """
    from client.protos.pipeline_service_pb2 import Response

    @functools.wraps(function)
    def caught(*args: P.args, **kwargs: P.kwargs) -> tuple[R | None, Response]:
        try:
            return function(*args, **kwargs), Response()
        except Exception as exc:
            log_id = _log_id(kwargs)
            log.exception("Log_id: %s  %s raised", log_id, function.__qualname__)
            err_no, _, _, message = (
                get_error_fields(exc)
                if isinstance(exc, ServingError)
                else (CustomExceptionCode.UNKNOW.value, 0, "", get_error_text(exc))
            )
            return None, Response(
                err_no=err_no,
                err_msg=f"Log_id: {log_id}  Raise_msg: {message}  ClassName: {function.__qualname__}  "
                f"FunctionName: {function.__name__}",
            )

    return caught


def ParamChecker(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator that checks a function's arguments and result by their annotations, at each call.

    An annotation is a type, None, or a function that returns whether a value is valid. It may also be a list,
    tuple or set of such annotations, one of which must fit. Raises CustomException with err_no 5000 that
    names the arguments.
    """
    signature = inspect.signature(function, eval_str=True)
    checks = {
        parameter.name: parameter.annotation
        for parameter in signature.parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        invalid = [name for name, check in checks.items() if not _fits(bound.arguments[name], check)]
        if invalid:
            raise CustomException(
                CustomExceptionCode.INPUT_PARAMS_ERROR, f"invalid arg list: {invalid}", isSendToUser=True
            )
        result = function(*args, **kwargs)
        if not _fits(result, signature.return_annotation):
            raise CustomException(
                CustomExceptionCode.INPUT_PARAMS_ERROR, "invalid return type", isSendToUser=True
            )
        return result

    return checked


class ParamVerify:
    """Check functions for the annotations of `ParamChecker`. Each returns whether a value is valid."""

    @staticmethod
    def int_check(c: Any, lower_bound: int | None = None, upper_bound: int | None = None) -> bool:
        """Return whether `c` is an int, between the bounds if both are given."""
        bounded = isinstance(lower_bound, int) and isinstance(upper_bound, int)
        return isinstance(c, int) and (not bounded or lower_bound <= c <= upper_bound)  # type: ignore[operator]

    @staticmethod
    def file_check(f: Any) -> bool:
        """Return whether `f` is the path of an existing file or folder."""
        return isinstance(f, str) and Path(f).exists()

    @staticmethod
    def check_feed_dict(feed_dict: Any, right_feed_list: Collection[str]) -> bool:
        """Return whether a dict has exactly these inputs. Names that contain "lod" (offsets) are ignored."""
        return isinstance(feed_dict, dict) and {k for k in feed_dict if "lod" not in k} == set(
            right_feed_list
        )

    @staticmethod
    def check_fetch_list(fetch_list: Any, right_fetch_list: Collection[str]) -> bool:
        """Return whether all names in a list are names of these outputs."""
        return isinstance(fetch_list, list) and set(fetch_list) <= set(right_fetch_list)

    @staticmethod
    def check_dynamic_shape_info(dynamic_shape_info: Any) -> bool:
        """Return whether a dict is empty, or has minimum, maximum and optimum shapes for TensorRT."""
        if not isinstance(dynamic_shape_info, dict):
            return False
        return not dynamic_shape_info or dynamic_shape_info.keys() >= _SHAPE_KEYS


def _log_id(arguments: dict[str, Any]) -> Any:
    if "log_id" in arguments:
        return arguments["log_id"]
    if "logid_dict" in arguments and "data_id" in arguments:
        return arguments["logid_dict"].get(arguments["data_id"])
    return 0


def _fits(value: Any, check: Any) -> bool:
    if check is inspect.Signature.empty:
        return True
    if isinstance(check, tuple | list | set):
        return any(_fits(value, option) for option in check)
    if check is None:
        return value is None
    if isinstance(check, type):
        return isinstance(value, check)
    return bool(check(value)) if callable(check) else False
