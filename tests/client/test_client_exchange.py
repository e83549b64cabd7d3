"""What HttpClient and RpcClient share: feeds, the kinds of errors, pauses before a retry."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from client.errors import (
    ClientError,
    RequestRefused,
    RequestTimedOut,
    ServiceUnavailable,
    ServiceUnreachable,
    TooManyRequests,
)
from client.exchange import as_feed
from client.http_client import HttpClient
from client.retry import parse_retry_after, pause_s
from client.rpc_client import RpcClient
from tests.support.scripted_servers import answer, http_server, reply, respond, rpc_server


@pytest.mark.parametrize(
    ("inputs", "feed"),
    [
        ("text", {"0": "text"}),
        (["t1", "t2"], {"0": "t1", "1": "t2"}),
        ({"words": "text"}, {"words": "text"}),
    ],
    ids=["one-text", "texts", "mapping"],
)
def test_texts_are_numbered_and_mappings_kept(inputs: Any, feed: dict[str, str]) -> None:
    assert as_feed(inputs) == feed


def test_nothing_to_send_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="nothing to send"):
        as_feed([])
    with pytest.raises(TypeError, match="key 'x': int"):
        as_feed({"x": 1})  # type: ignore[dict-item]


def test_the_deadline_of_the_service_is_a_timeout_too() -> None:
    with (
        http_server(respond(504, answer(6000, "too late"))) as server,
        HttpClient(server.url) as client,
        pytest.raises(RequestTimedOut, match="too late"),
    ):
        client.predict("text")
    with (
        rpc_server(reply(6000, "too late")) as rpc,
        RpcClient(rpc.address) as rpc_client,
        pytest.raises(RequestTimedOut, match="too late"),
    ):
        rpc_client.predict("text")
    assert (len(server.seen), len(rpc.seen)) == (1, 1)


def test_nobody_listening_is_unreachable(closed_port: int) -> None:
    clients = [
        HttpClient(f"http://127.0.0.1:{closed_port}", retries=1),
        RpcClient(f"127.0.0.1:{closed_port}", retries=1),
    ]
    for client in clients:
        with client, pytest.raises(ServiceUnreachable, match="is the service started"):
            client.predict("text")


def test_every_error_is_a_client_error() -> None:
    for kind in (ServiceUnreachable, RequestTimedOut, RequestRefused, TooManyRequests, ServiceUnavailable):
        assert issubclass(kind, ClientError)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("2", 2.0),
        (" 0 ", 0.0),
        ("Wed, 21 Oct 2026 07:28:05 GMT", 5.0),
        ("Wed, 21 Oct 2026 07:27:00 GMT", 0.0),
        ("soon", None),
        ("-1", None),
        (None, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header, datetime(2026, 10, 21, 7, 28, tzinfo=UTC)) == seconds


def test_pauses_grow_to_a_cap_and_never_undercut_the_service() -> None:
    assert [pause_s(tries, None, 0.999999) for tries in (1, 2, 3, 20)] == pytest.approx(
        [0.1, 0.2, 0.4, 5.0], 1e-3
    )
    assert pause_s(3, None, 0.0) == pytest.approx(0.2)
    assert pause_s(1, 7.0, 0.0) == 7.0
    assert pause_s(1, 7.0, 0.5) > 7.0
    assert pause_s(5, 0.0, 0.5) == 0.0
