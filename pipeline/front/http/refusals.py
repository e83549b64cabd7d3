"""What a connection refuses before there is a request: the errors, and what is sent for them."""

from __future__ import annotations

from pipeline.dialects.answer_form import AnswerForm
from pipeline.dialects.key_value.answers import render_error
from pipeline.dialects.key_value.key_value import EXAMPLE
from pipeline.dialects.kserve_v2.v2_errors import v2_error_body
from pipeline.errors import InvalidInput, ServingError, TooLarge, Unauthenticated

_USAGE = f"Send POST /{{service}}/{{method}} with a body like {EXAMPLE}"
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


def refusal(error: ServingError, url: bytes) -> tuple[bytes, bytes]:
    """Header lines and body of a connection's last answer. url: as far as it has arrived."""
    head = b"content-type: application/json\r\nconnection: close\r\n"
    if isinstance(error, Unauthenticated):
        head += b"www-authenticate: Bearer\r\n"
    # The clients of KServe know another form.
    kserve = url == b"/v2" or url.startswith((b"/v1/", b"/v2/"))
    return head, v2_error_body(error.message) if kserve else render_error(error, AnswerForm.JSON)
