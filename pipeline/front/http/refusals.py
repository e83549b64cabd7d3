"""What is refused in HTTP's own terms: before there is a request; where nothing is; another method."""

from __future__ import annotations

from http import HTTPStatus

from pipeline.api.examples import KEY_VALUE_EXAMPLE
from pipeline.errors import InvalidInput, ServingError, TooLarge
from pipeline.front.http.http_request import HttpRequest

_USAGE = f"Send POST /{{service}}/{{method}} with a body like {KEY_VALUE_EXAMPLE}"
_REQUEST_TIMEOUT = 408
_HEADER_TOO_LARGE = 431


def no_http(message: str) -> ServingError:
    return InvalidInput(f"{message} {_USAGE}")


def too_slow(what: str, limit_s: float) -> ServingError:
    error = InvalidInput(f"the {what} did not arrive within {limit_s:g} s. {_USAGE}")
    error.http_status = _REQUEST_TIMEOUT
    return error


def headers_too_large(what: str) -> ServingError:
    return too_large(f"the request has {what}", _HEADER_TOO_LARGE)


def too_large(what: str, http_status: int = 413) -> ServingError:
    error = TooLarge(f"{what}; the limits of this service are in config.yml under limits")
    error.http_status = http_status
    return error


class Refused(ServingError):
    """Nothing is there, or not for this method. phrase: HTTP's own words. allowed: the methods that are.

    message: for the log, and for clients that are told more than the phrase.
    """

    def __init__(self, status: int, request: HttpRequest, message: str = "", *allowed: str) -> None:
        self.phrase = HTTPStatus(status).phrase
        super().__init__(message or f"{self.phrase}: {request.method} {request.path}")
        self.http_status = status
        self.allowed = allowed


def check_method(request: HttpRequest, *allowed: str, tells: bool = False) -> None:
    """Raises Refused for a method that is not answered at this path. tells: its message says which are."""
    if request.method not in allowed:
        told = f"{request.method} is not answered at {request.path}; use {' or '.join(allowed)}"
        raise Refused(405, request, told if tells else "", *allowed)
