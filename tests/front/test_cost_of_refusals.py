"""A refusal that is only counted costs little: its text is read once, and its status without its text."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.errors import Overloaded, ServingError, get_error_fields, is_clients, is_servers
from pipeline.front.metrics.access_log import AccessLog


class CountedText:
    def __init__(self) -> None:
        self.reads = 0

    def __str__(self) -> str:
        self.reads += 1
        return "too much is pending"


class Unreadable:
    def __int__(self) -> int:
        raise ValueError("no status")


async def _refuse(log: AccessLog, errors: list[ServingError]) -> None:
    for error in errors:
        log.refused("http", error, "127.0.0.1")


def test_a_refusal_that_is_only_counted_reads_its_text_once() -> None:
    outcomes: Counter[tuple[str, int]] = Counter()
    metrics: Any = SimpleNamespace(outcomes=outcomes)
    first, second = CountedText(), CountedText()
    errors: list[ServingError] = [Overloaded(text) for text in (first, second)]  # type: ignore[arg-type]
    asyncio.run(_refuse(AccessLog(metrics), errors))
    assert outcomes == {("http", Overloaded.err_no): 2}
    assert second.reads == 1


@pytest.mark.parametrize(
    ("status", "expected", "clients", "servers"),
    [
        (429, 429, False, False), (503, 503, False, False), (504, 504, False, False), (400, 400, True, False),
        (500, 500, False, True), (204, 500, False, True), (700, 500, False, True), ("404", 404, True, False),
        (Unreadable(), 500, False, True), (None, 500, False, True),
    ],
)  # fmt: skip
def test_blame_follows_the_status_whatever_an_app_has_set(
    status: Any, expected: int, clients: bool, servers: bool
) -> None:
    error = ServingError("a failure")
    error.http_status = status
    assert get_error_fields(error).http_status == expected
    assert (is_clients(error), is_servers(error)) == (clients, servers)


def test_a_mistake_of_the_client_has_any_status() -> None:
    error = ServingError("a failure of a remote server")
    error.clients = True
    assert is_clients(error)
    assert not is_servers(error)
