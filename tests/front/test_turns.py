"""Which requests begin in which turn of the loop."""

from __future__ import annotations

import asyncio
from typing import Any

from pipeline.config.config_file import Limits
from pipeline.errors import ServingError
from pipeline.front.http.connection import Connection, HttpRequest
from pipeline.front.http.listener import MAX_REQUESTS_PER_TURN, Listener


class _Transport(asyncio.Transport):
    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class _App:
    """Answers each request at once."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def handle(self, request: HttpRequest) -> None:
        self.taken.append(request.path)
        request.respond(200, b"", b"")

    def check_body(self, method: str, path: str, length: int | None) -> None:
        pass

    def refusal(self, error: ServingError, url: bytes) -> tuple[bytes, bytes]:
        raise error

    def log_refusal(self, error: ServingError, client: str) -> None:
        raise error

    def log_unread(self, why: str) -> None:
        raise AssertionError(why)


def test_a_first_request_that_a_full_turn_postpones_comes_before_a_second_one() -> None:
    async def take() -> list[str]:
        app, listener = _App(), Listener(Limits())
        connections = [Connection(app, listener) for _ in range(2)]
        for connection in connections:
            connection.connection_made(_Transport())
        pipelining, asking = connections
        listener.begun = MAX_REQUESTS_PER_TURN - 1
        pipelining.data_received(_get("/first") + _get("/second"))
        asking.data_received(_get("/other"))
        assert app.taken == ["/first"]
        while len(app.taken) < 3:
            await asyncio.sleep(0)
        return app.taken

    assert asyncio.run(take()) == ["/first", "/other", "/second"]


def test_pipelined_requests_of_many_connections_begin_after_the_request_of_another_connection() -> None:
    async def take() -> int:
        app, listener = _App(), Listener(Limits())
        connections = [Connection(app, listener) for _ in range(4 * MAX_REQUESTS_PER_TURN)]
        for connection in connections:
            connection.connection_made(_Transport())
        *pipelining, probing = connections
        for connection in pipelining:
            connection.data_received(_get("/metrics") * 3)
        while len(app.taken) < len(pipelining) + MAX_REQUESTS_PER_TURN:  # each first request has begun
            await asyncio.sleep(0)
        waiting = len(app.taken)
        listener.begun = MAX_REQUESTS_PER_TURN
        probing.data_received(_get("/health/live"))
        while "/health/live" not in app.taken:
            await asyncio.sleep(0)
        begun_before = app.taken.index("/health/live") - waiting
        while len(app.taken) < 3 * len(pipelining) + 1:
            await asyncio.sleep(0)
        return begun_before

    assert asyncio.run(take()) == 0


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode()
