"""Refusals of KServe v2, each with the status that Triton has for its kind."""

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


class KServeRefusal(InvalidInput):
    """A request of KServe v2 that can't be served, with Triton's message for it."""

    clients = True  # Triton has 500 for a body that it can't read

    def __init__(self, message: str, code: str = "INVALID_ARGUMENT") -> None:
        super().__init__(message)
        self.grpc_code = code
        self.http_status = HTTP_STATUSES[code]


_FULL = "[request id: <id_unknown>] Exceeds maximum queue size: "


def error_body(message: str) -> bytes:
    """The body of a refusal over HTTP."""
    return msgspec.json.encode({"error": message})


def of_request(request_id: str, message: str, code: str = "INVALID_ARGUMENT") -> KServeRefusal:
    """A refusal that names the request, as Triton's do once a request is built."""
    return KServeRefusal(f"[request id: {request_id or '<id_unknown>'}] {message}", code)


def for_clients(error: ServingError) -> tuple[int, str, str]:
    """HTTP status, gRPC code and message of any refusal, as clients of KServe v2 know them."""
    if isinstance(error, DeadlineExceeded):
        return HTTP_STATUSES["UNAVAILABLE"], "UNAVAILABLE", "Request timeout expired"
    if isinstance(error, Overloaded):
        return HTTP_STATUSES["UNAVAILABLE"], "UNAVAILABLE", _FULL + error.message
    return error.http_status, error.grpc_code, error.message
