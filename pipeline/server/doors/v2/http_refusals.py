"""Refusals of HTTP itself: no such path, another method."""

from __future__ import annotations

from pipeline.errors import ServingError
from pipeline.server.doors.http_request import HttpRequest


class Refused(ServingError):
    """Nothing is there, or not for this method."""

    def __init__(self, status: int) -> None:
        super().__init__("Not Found" if status == 404 else "Method Not Allowed")
        self.http_status = status


def check_method(request: HttpRequest, *allowed: str) -> None:
    """Raises Refused for a method that is not answered at this path."""
    if request.method not in allowed:
        raise Refused(405)
