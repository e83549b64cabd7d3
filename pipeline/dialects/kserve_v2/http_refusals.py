"""Refusals of HTTP itself: no such path, another method."""

from __future__ import annotations

from pipeline.errors import ServingError
from pipeline.front.http.http_request import HttpRequest


class Refused(ServingError):
    """Nothing is there, or not for this method. answer: what the client is told, as Triton does."""

    def __init__(self, status: int, request: HttpRequest) -> None:
        self.answer = "Not Found" if status == 404 else "Method Not Allowed"
        super().__init__(f"{self.answer}: {request.method} {request.path}")
        self.http_status = status


def check_method(request: HttpRequest, *allowed: str) -> None:
    """Raises Refused for a method that is not answered at this path."""
    if request.method not in allowed:
        raise Refused(405, request)
