"""Errors of KServe requests, with the statuses and messages of Triton."""

from __future__ import annotations

import msgspec

from pipeline.errors import DeadlineExceeded, InvalidInput, Overloaded, ServingError

HTTP_STATUSES = {
    "INVALID_ARGUMENT": 400,
    "UNKNOWN": 400,
    "PERMISSION_DENIED": 403,
    "ALREADY_EXISTS": 400,
    "NOT_FOUND": 404,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
}
_QUEUE_FULL = "[request id: <id_unknown>] Exceeds maximum queue size: "


class KServeRefusal(InvalidInput):
    """Raised to reject a request with a message and a status like those of Triton.

    code: gRPC status code, which determines the HTTP status; see HTTP_STATUSES. By default, the HTTP status
    is 400.
    """

    clients = True  # an error of the client, even with status 500, which Triton sends for invalid JSON

    def __init__(self, message: str, code: str = "INVALID_ARGUMENT") -> None:
        super().__init__(message)
        self.grpc_code = code
        self.http_status = HTTP_STATUSES[code]


def error_body(message: str) -> bytes:
    """Encode the JSON body of an HTTP error response, `{"error": message}`."""
    return msgspec.json.encode({"error": message})


def request_refusal(request_id: str, message: str, code: str = "INVALID_ARGUMENT") -> KServeRefusal:
    """Return a KServeRefusal whose message begins with the request's id, as Triton's messages do."""
    return KServeRefusal(f"[request id: {request_id or '<id_unknown>'}] {message}", code)


def describe_error(error: ServingError) -> tuple[int, str, str]:
    """Return the HTTP status, gRPC code and message with which Triton reports an error."""
    if isinstance(error, DeadlineExceeded):
        return HTTP_STATUSES["UNAVAILABLE"], "UNAVAILABLE", "Request timeout expired"
    if isinstance(error, Overloaded):
        return HTTP_STATUSES["UNAVAILABLE"], "UNAVAILABLE", _QUEUE_FULL + error.message
    return error.http_status, error.grpc_code, error.message
