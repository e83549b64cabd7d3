"""A request over HTTP as the application sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from pipeline.errors import ServingError
from pipeline.front.scheduler.admission import Client
from pipeline.front.scheduler.clients import named
from pipeline.messages.values import Part

Headers = dict[bytes, bytes]
"""By name in lower case; of one that was sent twice the first."""


class HttpRequest(msgspec.Struct, eq=False):
    """A request that has arrived whole. It is answered once, by `respond`, sooner or later.

    client: who asks. path: percent-decoded, without the query. began: when it had come and those before it
    on its connection were answered (time.monotonic). on_left: set by whoever works on the request; called
    when the client leaves before the answer.
    """

    _source: RequestSource
    client: Client
    method: str
    path: str
    headers: Headers
    body: bytes
    keep_alive: bool
    began: float = 0.0
    on_left: Callable[[], None] | None = None

    @property
    def peer(self) -> str:
        """The client's address, and the name of its API key."""
        return named(self._source.peer, self.client)

    def respond(self, status: int, head: bytes, body: Part) -> None:
        """Answer. head: header lines, each with its CRLF; the length and the date are put in here."""
        self._source.respond(self, status, head, body)


class RequestSource(Protocol):
    """The connection that a request came over."""

    @property
    def peer(self) -> str: ...
    def respond(self, request: HttpRequest, status: int, head: bytes, body: Part) -> None: ...


class RequestTaker(Protocol):
    """The application behind the connections."""

    def take(self, request: HttpRequest) -> None: ...
    def refusal(self, error: ServingError, url: bytes) -> tuple[bytes, bytes]: ...
    def note_refusal(self, error: ServingError) -> None: ...
    def note_unread(self, why: str) -> None: ...
