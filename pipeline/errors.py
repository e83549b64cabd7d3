"""Exception classes of the server, with their statuses in HTTP, gRPC and the key/value protocol.

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
# |-- SequenceLost              9000 / 409 / ABORTED             the instance with its state died
# |-- PoisonRequest             9000 / 500 / INTERNAL            it killed a worker that ran nothing else
# |-- AnswersNotRead           3001 / 429 / RESOURCE_EXHAUSTED  the client of a stream reads too slowly
# |-- AnswerCount               9000 / 500 / INTERNAL            a model sent several answers, or none
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
    """Base class of the server's exceptions. The message names the cause, the field or file, and the remedy.

    Subclasses set the statuses of the response: `err_no` (Paddle Serving's number), HTTP status and gRPC
    code. With `dag.http_errors: original` the key/value protocol answers HTTP 200 with `err_no`, unless
    `always_status`.
    """

    err_no = 10000
    http_status = 500
    grpc_code = "INTERNAL"
    always_status = False  # True: `http_status` also where `dag.http_errors: original` answers 200
    clients = False  # True: the client's mistake, whatever the status (a status may come from another server)
    logged = False  # whether the log already has the error with its traceback
    kind = ""  # name of the original class, in the front's copy of a worker's error
    step = ""  # node of the step that failed, if one worker runs all steps of an ensemble
    op = ""  # the Op that failed, in the front
    user_place = ""  # class of the exception, function, file and line in user code; empty elsewhere

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


class InvalidInput(ServingError):
    """Raised for a request with unusable content; HTTP 400. The message names the field."""

    err_no = 5000
    http_status = 400
    grpc_code = "INVALID_ARGUMENT"


class BadPackage(InvalidInput):
    """Raised for a request message without usable inputs; HTTP 400 (Paddle Serving's "rpc package error")."""

    err_no = 8000


class MalformedBody(BadPackage):
    """Raised for a request body that can't be parsed: no valid JSON, or a field of the wrong type.

    Always HTTP 400, even with `dag.http_errors: original`, because Paddle Serving's gateway answered 400,
    too.
    """

    always_status = True


class UnprintableAnswer(InvalidInput):
    """Raised when the service's output can't be written in the protocol of the request; HTTP 500."""

    err_no = 7000
    http_status = 500
    grpc_code = "INTERNAL"


class NoArray(InvalidInput):
    """Raised when an input tensor is no NumPy array; HTTP 400.

    Paddle Serving says "feed_batch must be npdata".
    """

    err_no = 7000


class UnusableFeed(InvalidInput):
    """Raised for an input array that the model can't run: not numeric, empty, or of a wrong shape; HTTP 400.

    Paddle Serving failed while the model ran, and had no separate error number.
    """

    err_no = 10000


class MissingFeed(InvalidInput):
    """Raised when a request lacks an input tensor of the model; HTTP 400.

    `feed` is the name of the tensor.
    """

    def __init__(self, message: str, feed: str = "") -> None:
        super().__init__(message)
        self.feed = feed


class MissingKey(InvalidInput, KeyError):
    """Raised when user code reads a key that the request does not have; HTTP 400. Also a KeyError."""

    err_no = 10000  # in Paddle Serving, the number of any error in a hook
    __str__ = Exception.__str__  # KeyError.__str__ adds quotes


class TooLarge(InvalidInput):
    """Raised for a request that exceeds one of the `limits` in config.yml; HTTP 413."""

    http_status = 413


class UnknownService(ServingError):
    """Raised when the URL, or the `name` in a gRPC request, names no service of this server; HTTP 404."""

    err_no = 3002
    http_status = 404
    grpc_code = "NOT_FOUND"


class UnknownVersion(UnknownService):
    """Raised for a model version that is not served, or no longer served; HTTP 404.

    The message is Triton's.
    """

    def __init__(self, model: str, version: str) -> None:
        super().__init__(f"Request for unknown model: '{model}' version {int(version)} is not found")


class Unauthenticated(ServingError):
    """Raised for a request without an API key, or with a key that is not in `security.api_keys`; HTTP 401."""

    err_no = 3004
    http_status = 401
    grpc_code = "UNAUTHENTICATED"
    always_status = True  # the original had no such refusal to be true to


class RestrictedApi(ServingError):
    """Raised when a request lacks the secret header that the operator requires for this API; HTTP 403."""

    err_no = 3004
    http_status = 403
    grpc_code = "UNAVAILABLE"  # as Triton answers
    always_status = True
    clients = True


class CrossSite(ServingError):
    """Raised for a request that changes the server and may come from a web page of another site; HTTP 403."""

    err_no = 3004
    http_status = 403
    grpc_code = "PERMISSION_DENIED"
    always_status = True


class ProductError(ServingError):
    """Raised by user code to reject a request with the app's own number; HTTP 400.

    Example: `raise ProductError("...", err_no=51)`.
    """

    http_status = 400
    grpc_code = "INVALID_ARGUMENT"

    def __init__(self, message: str, err_no: int = 50) -> None:
        super().__init__(message)
        self.err_no = err_no


class DeadlineExceeded(ServingError):
    """Raised when a request's deadline passes before its response is ready; HTTP 504."""

    err_no = 6000
    http_status = 504
    grpc_code = "DEADLINE_EXCEEDED"


class Overloaded(ServingError):
    """Raised when the server or a queue is full; HTTP 429.

    Clients may retry after `retry_after_s` seconds.
    """

    err_no = 3001
    http_status = 429
    grpc_code = "RESOURCE_EXHAUSTED"
    always_status = True  # the original had no such refusal to be true to

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotReady(ServingError):
    """Raised when the server can't accept requests: no worker is running, or the server stops; HTTP 503."""

    err_no = 3001
    http_status = 503
    grpc_code = "UNAVAILABLE"
    always_status = True  # the original had no such refusal to be true to


class WorkerLost(ServingError):
    """Raised when a worker process died while running the request, which may not be retried; HTTP 503.

    The retry is forbidden by `crash_retry: false` in config.yml.
    """

    err_no = 9000
    http_status = 503
    grpc_code = "UNAVAILABLE"


class SequenceLost(ServingError):
    """Raised for a request of a sequence whose state is lost with the worker that kept it; HTTP 409.

    The client must start the sequence again.
    """

    err_no = 9000
    http_status = 409
    grpc_code = "ABORTED"


class PoisonRequest(ServingError):
    """Raised for a request that killed a worker process while running alone in it; HTTP 500."""

    err_no = 9000


class AnswersNotRead(ServingError):
    """Raised for a stream whose client does not read its answers while other requests wait; HTTP 429."""

    err_no = 3001
    http_status = 429
    grpc_code = "RESOURCE_EXHAUSTED"
    clients = True


class AnswerCount(ServingError):
    """Raised when a model sends several answers, or none, to a request that takes exactly one; HTTP 500.

    Clients get the message of Triton's `generate`.
    """

    err_no = 9000

    def __init__(self) -> None:
        super().__init__(
            "generate expects model to produce exactly 1 response, use generate stream for model that "
            "generates various number of responses"
        )


class HookFailed(ServingError):
    """Raised when user code, such as the preprocess method of a step (Op), raises an exception; HTTP 500.

    The log has its traceback under the request's id.
    """


class WrongResult(HookFailed):
    """Raised when a method of user code (a hook, such as preprocess) returns an unexpected type; HTTP 500.

    `returned` is the value, `expected` describes the expected type, and `part` adds the value's place to the
    message.
    """

    err_no = 7000

    def __init__(self, op: str, hook: str, returned: object, expected: str, *, part: str = "") -> None:
        kind = type(returned).__name__
        if isinstance(returned, list | tuple):
            kind += f" of {len(returned)}"
        if kind in ("coroutine", "generator", "async_generator"):  # of a hook that has not run at all
            expected += "; write it without async and yield"
        super().__init__(f"[{op}] {hook} returned {kind}{part}; expected {expected}")


class ForgottenFeed(HookFailed):
    """Raised when user code returns model inputs without a required input; HTTP 500.

    It is not the client's mistake, because clients need not send this tensor.
    """

    err_no = MissingFeed.err_no


class ModelFailed(ServingError):
    """Raised when the inference engine fails on a request's input tensors; HTTP 500."""

    err_no = 9000


class DeviceLost(ModelFailed):
    """Raised when an inference error has made the GPU unusable for this process. The worker must end."""


class RemoteUnreachable(ServingError):
    """Raised when no endpoint of a remote model service answers; HTTP 503. The message says what to check."""

    err_no = 9000
    http_status = 503
    grpc_code = "UNAVAILABLE"


class RemoteRefused(ServingError):
    """Raised when the remote model server behind a step (Op) answers with an error; HTTP 504, 400 or 500.

    The error's number and message are passed on. The number determines the HTTP status: 504 for a deadline,
    400 for an invalid input, else 500.
    """

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
    """Raised when config.yml, the command line or the user's script can't be used.

    The message has a line per mistake.
    """

    err_no = 4000


class StartFailed(ServingError):
    """Raised when a worker process fails to start; the message has the reason and the traceback."""

    err_no = 3003


class ConversionError(ServingError):
    """Raised when a model can't be converted.

    The message, one sentence, names the file, the expectation and the remedy.
    """


class ParityError(ConversionError):
    """Raised when the outputs of a converted model differ from the original model's outputs.

    No files have been written.
    """


class Described(NamedTuple):
    """The fields of an error response, as plain values."""

    err_no: int
    http_status: int
    grpc_code: str
    message: str


def detach(error: ServingError) -> ServingError:
    """Remove traceback and causes from an error that is kept for later, and return the error.

    Otherwise the error would keep its frames, with the request's inputs, in memory until the next garbage
    collection.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def get_error_fields(error: ServingError) -> Described:
    """Return err_no, HTTP status, gRPC code and message of an error, with invalid values corrected.

    An app's own exception class may have invalid values. Statuses below 400 become 500: for example, 204 has
    no body, and a client would read the body as the next response.
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
    """Return the HTTP status of an error's response; 500 if the class has no valid error status."""
    try:
        status = int(error.http_status)
    except BaseException:  # of an app's own class
        return ServingError.http_status
    return status if status in _HTTP_ERRORS else ServingError.http_status


def is_clients(error: ServingError) -> bool:
    """Whether the client caused the error.

    True for HTTP 4xx except 429, and for classes that declare it.
    """
    status = get_http_status(error)
    return error.clients or (status < ServingError.http_status and status != Overloaded.http_status)


_FOR_NOW = frozenset((Overloaded.http_status, NotReady.http_status, DeadlineExceeded.http_status))


def is_servers(error: ServingError) -> bool:
    """Whether the error is a fault of the server.

    False for errors that a client caused, and for overload (429), unavailability (503) and deadlines (504).
    """
    return get_http_status(error) not in _FOR_NOW and not is_clients(error)


def get_error_text(exc: BaseException) -> str:
    """Return `str(exc)` made sendable by `to_sendable_text`; the class name if `__str__` raises."""
    try:
        return to_sendable_text(str(exc))
    except BaseException:  # __str__ may even raise KeyboardInterrupt; other requests must not fail with it
        return type(exc).__name__


def to_sendable_text(text: object) -> str:
    """Return `str(text)` as valid UTF-8, cut to MAX_MESSAGE_CHARS characters."""
    plain = str.encode(str(text)[: MAX_MESSAGE_CHARS + 1], "utf-8", "replace").decode()
    return plain if len(plain) <= MAX_MESSAGE_CHARS else plain[:MAX_MESSAGE_CHARS] + "..."


OUR_FAULT = ServingError("internal error; the server's log has its reason")
OUR_FAULT.logged = True
"""The error that clients get for a bug of this project."""
