"""Every error of the project, and its status in each protocol.

4xx is the client's mistake, 5xx the server's. docs/errors.md lists the causes.
"""

# err_no / HTTP status / gRPC code, then the cause:
#
# ServingError                 10000 / 500 / INTERNAL
# |-- InvalidInput              5000 / 400 / INVALID_ARGUMENT    the request's content
# |   |-- BadPackage            8000 / 400                       the message around it
# |   |   `-- MalformedBody     8000 / 400 always                no JSON, or none of this form
# |   |-- UnprintableAnswer     7000 / 500 / INTERNAL            an Op's answer has a type that can't be sent
# |   |-- NoArray               7000 / 400                       a feed of a type that no model takes
# |   |-- UnusableFeed         10000 / 400                       a feed that this model can't be given
# |   |-- MissingFeed           5000 / 400                       a feed of the model's that is not there
# |   |-- MissingKey           10000 / 400                       a key that the Op asks for and was not sent
# |   `-- TooLarge              5000 / 413                       a limit of `limits`
# |-- UnknownService            3002 / 404 / NOT_FOUND
# |   `-- UnknownVersion        3002 / 404                       of a model
# |-- ProductError         as the Op says / 400                  the app's own code, 50..99 by custom
# |-- Unauthenticated           3004 / 401 / UNAUTHENTICATED     no API key, or one that is not known
# |-- CrossSite                 3004 / 403 / PERMISSION_DENIED   a web page of another site changes the server
# |-- DeadlineExceeded          6000 / 504 / DEADLINE_EXCEEDED
# |-- Overloaded                3001 / 429 / RESOURCE_EXHAUSTED
# |-- NotReady                  3001 / 503 / UNAVAILABLE
# |-- WorkerLost                9000 / 503 / UNAVAILABLE         the worker died, and no retry is allowed
# |-- PoisonRequest             9000 / 500 / INTERNAL            it killed a worker that ran nothing else
# |-- HookFailed               10000 / 500 / INTERNAL            user code raised
# |   |-- WrongResult           7000 / 500 / INTERNAL            it returned something of another type
# |   `-- ForgottenFeed         5000 / 500 / INTERNAL            it forgot one of the model's feeds
# |-- ModelFailed               9000 / 500 / INTERNAL            the engine refused to run
# |-- RemoteUnreachable         9000 / 503 / UNAVAILABLE         no endpoint of a remote Op answers
# |-- RemoteRefused        as the remote service says            its own err_no and message
# |-- ConfigError               4000                             config.yml or the app, at start-up
# |-- StartFailed               3003                             a worker could not start
# `-- ConversionError                                            convert/; exit code 2
#     `-- ParityError                                            the outputs disagree; exit code 1

from __future__ import annotations

from typing import NamedTuple

PRODUCT_ERR_NOS = range(50, 100)  # the app's own numbers, by Paddle Serving's custom
MAX_MESSAGE_CHARS = 16 << 10  # of an app's message, which may quote a whole image
_HTTP_ERRORS = range(400, 600)
_GRPC_ERRORS = {
    "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
    "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
}  # fmt: skip


class ServingError(Exception):
    """Base class of all errors. The message names the cause, the field or file, and the remedy."""

    err_no = 10000
    http_status = 500
    grpc_code = "INTERNAL"
    always_status = False  # True: `http_status` also where `dag.http_errors: original` answers 200
    clients = False  # True: the client's mistake, whatever the status (a status may come from another server)
    logged = False  # whether the log already has the error with its traceback
    kind = ""  # name of the original class, in the front's copy of a worker's error

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


class InvalidInput(ServingError):
    """The content of a request can't be used; the message names the field."""

    err_no = 5000
    http_status = 400
    grpc_code = "INVALID_ARGUMENT"


class BadPackage(InvalidInput):
    """The message around the content can't be read (Paddle Serving: rpc package error)."""

    err_no = 8000


class MalformedBody(BadPackage):
    """The body is no JSON, or a field of it has another type; the original's gateway answered 400, too."""

    always_status = True


class UnprintableAnswer(InvalidInput):
    """An Op answered with a value that has no form on this route."""

    err_no = 7000
    http_status = 500
    grpc_code = "INTERNAL"


class NoArray(InvalidInput):
    """A feed is no array (Paddle Serving: "feed_batch must be npdata")."""

    err_no = 7000


class UnusableFeed(InvalidInput):
    """An array that the model can't run: not numeric, empty, or of a shape that the model rejects.

    Paddle Serving failed while the model ran, and had no separate number for this error.
    """

    err_no = 10000


class MissingFeed(InvalidInput):
    """A feed of the model is missing from the request. `feed` is its name."""

    def __init__(self, message: str, feed: str = "") -> None:
        super().__init__(message)
        self.feed = feed


class MissingKey(InvalidInput, KeyError):
    """A hook reads a key that the client has not sent."""

    err_no = 10000  # in Paddle Serving, the number of any error in a hook
    __str__ = Exception.__str__  # KeyError.__str__ adds quotes


class TooLarge(InvalidInput):
    """A request is over one of the `limits` of config.yml."""

    http_status = 413


class UnknownService(ServingError):
    """The path or the request's `name` is not a service of this process."""

    err_no = 3002
    http_status = 404
    grpc_code = "NOT_FOUND"


class UnknownVersion(UnknownService):
    """A model version that is not served, or no longer served. The message is Triton's."""

    def __init__(self, model: str, version: str) -> None:
        super().__init__(f"Request for unknown model: '{model}' version {int(version)} is not found")


class Unauthenticated(ServingError):
    """The client showed no API key, or one that `security.api_keys` does not have."""

    err_no = 3004
    http_status = 401
    grpc_code = "UNAUTHENTICATED"
    always_status = True  # the original had no such refusal to be true to


class RestrictedApi(ServingError):
    """The request lacks the header that the server's operator requires for this API."""

    err_no = 3004
    http_status = 403
    grpc_code = "UNAVAILABLE"  # as Triton answers
    always_status = True
    clients = True


class CrossSite(ServingError):
    """A request that changes the server and may come from a web page of another site."""

    err_no = 3004
    http_status = 403
    grpc_code = "PERMISSION_DENIED"
    always_status = True


class ProductError(ServingError):
    """The app's own refusal, with its own number: `raise ProductError("...", err_no=51)`."""

    http_status = 400
    grpc_code = "INVALID_ARGUMENT"

    def __init__(self, message: str, err_no: int = 50) -> None:
        super().__init__(message)
        self.err_no = err_no


class DeadlineExceeded(ServingError):
    """The request's deadline passed before its response was ready."""

    err_no = 6000
    http_status = 504
    grpc_code = "DEADLINE_EXCEEDED"


class Overloaded(ServingError):
    """Too much is pending; `retry_after_s` says when to try again."""

    err_no = 3001
    http_status = 429
    grpc_code = "RESOURCE_EXHAUSTED"
    always_status = True  # the original had no such refusal to be true to

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotReady(ServingError):
    """An Op has no running instance, or the service is stopping."""

    err_no = 3001
    http_status = 503
    grpc_code = "UNAVAILABLE"
    always_status = True  # the original had no such refusal to be true to


class WorkerLost(ServingError):
    """The worker died under the request, and `crash_retry: false` forbids another try."""

    err_no = 9000
    http_status = 503
    grpc_code = "UNAVAILABLE"


class PoisonRequest(ServingError):
    """The request killed a worker that was running nothing else."""

    err_no = 9000


class HookFailed(ServingError):
    """A hook of the app raised; its traceback is in the log under the request's id."""


class WrongResult(HookFailed):
    """A hook of the app returned something of another type than it should."""

    err_no = 7000

    def __init__(self, op: str, hook: str, returned: object, expected: str, *, part: str = "") -> None:
        kind = type(returned).__name__
        if isinstance(returned, list | tuple):
            kind += f" of {len(returned)}"
        if kind in ("coroutine", "generator", "async_generator"):  # of a hook that has not run at all
            expected += "; write it without async and yield"
        super().__init__(f"[{op}] {hook} returned {kind}{part}; expected {expected}")


class ForgottenFeed(HookFailed):
    """A hook of the app returned a feed dict without a feed that the client was not expected to send."""

    err_no = MissingFeed.err_no


class ModelFailed(ServingError):
    """The engine refused to run this request's feeds."""

    err_no = 9000


class RemoteUnreachable(ServingError):
    """No endpoint of a remote Op answers; the message names them and what to check."""

    err_no = 9000
    http_status = 503
    grpc_code = "UNAVAILABLE"


class RemoteRefused(ServingError):
    """An error of the service behind a remote Op, passed on with its number and message."""

    def __init__(self, message: str, err_no: int) -> None:
        super().__init__(message)
        self.err_no = err_no
        if err_no == DeadlineExceeded.err_no:
            like: type[ServingError] = DeadlineExceeded
        elif err_no in (InvalidInput.err_no, BadPackage.err_no, *PRODUCT_ERR_NOS):
            like = InvalidInput
        else:
            like = ServingError
        self.http_status, self.grpc_code = like.http_status, like.grpc_code


class ConfigError(ServingError):
    """config.yml or the app can't be served as it is. Carries all mistakes, one a line."""

    err_no = 4000


class StartFailed(ServingError):
    """A worker did not become ready; the message has its reason and traceback."""

    err_no = 3003


class ConversionError(ServingError):
    """A model can't be converted: one sentence with file, expectation and remedy."""


class ParityError(ConversionError):
    """Source and result of a conversion disagree; nothing was written."""


class Described(NamedTuple):
    err_no: int
    http_status: int
    grpc_code: str
    message: str


def detach(error: ServingError) -> ServingError:
    """Return the error without its traceback and its causes.

    A stored error would keep its frames, and the request's inputs in them, alive in a reference cycle until
    the next garbage collection.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def get_error_fields(error: ServingError) -> Described:
    """Return err_no, HTTP status, gRPC code and message as plain values, whatever an app put into them.

    Statuses below 400 become 500: 204 has no body, and the client would read the body as the next response.
    """
    try:
        err_no, message = int(error.err_no), to_sendable_text(error.message)
    except BaseException:  # of an app's own class, whatever it may be
        err_no, message = ServingError.err_no, get_error_text(error)
    if not -(1 << 31) <= err_no < 1 << 31:  # the field of the answer is an int32
        err_no, message = ServingError.err_no, f"{message} (err_no {err_no})"
    try:
        code = str(error.grpc_code)
    except BaseException:
        code = ServingError.grpc_code
    return Described(
        err_no,
        get_http_status(error),
        code if code in _GRPC_ERRORS else ServingError.grpc_code,
        message,
    )


def get_http_status(error: ServingError) -> int:
    """Return an error's HTTP status, 500 in place of a status that is no error."""
    try:
        status = int(error.http_status)
    except BaseException:  # of an app's own class
        return ServingError.http_status
    return status if status in _HTTP_ERRORS else ServingError.http_status


def is_clients(error: ServingError) -> bool:
    """Whether an error is its client's mistake."""
    status = get_http_status(error)
    return error.clients or (status < ServingError.http_status and status != Overloaded.http_status)


_FOR_NOW = frozenset((Overloaded.http_status, NotReady.http_status, DeadlineExceeded.http_status))


def is_servers(error: ServingError) -> bool:
    """Whether an error is the server's fault: not the client's, no overload and no missed deadline."""
    return get_http_status(error) not in _FOR_NOW and not is_clients(error)


def get_error_text(exc: BaseException) -> str:
    """Return an exception's text, safe to send; the class name where its __str__ raises."""
    try:
        return to_sendable_text(str(exc))
    except BaseException:  # __str__ may even raise KeyboardInterrupt; other requests must not fail with it
        return type(exc).__name__


def to_sendable_text(text: object) -> str:
    """Return an object's text, encodable as UTF-8 and cut to MAX_MESSAGE_CHARS."""
    plain = str.encode(str(text)[: MAX_MESSAGE_CHARS + 1], "utf-8", "replace").decode()
    return plain if len(plain) <= MAX_MESSAGE_CHARS else plain[:MAX_MESSAGE_CHARS] + "..."


OUR_FAULT = ServingError("internal error; the server's log has its reason")
OUR_FAULT.logged = True
"""The error that clients get for a bug of this project."""
