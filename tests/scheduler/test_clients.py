"""Clients: API keys and their limits, gRPC peers, open pages and restricted APIs."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.api.restrictions import RestrictedApis, Restriction
from pipeline.config.api_keys import ApiKey
from pipeline.config.config_file import SecurityConfig
from pipeline.errors import ConfigError, Overloaded, RestrictedApi, Unauthenticated
from pipeline.front.dag_run import Client
from pipeline.front.http.request_head import HttpGuard
from pipeline.front.scheduler.admission import (
    CALLER,
    MAX_PEERS,
    KeyClient,
    KeyRing,
    Peers,
    find_key,
    name_caller,
    name_peer,
)
from tests.scheduler.conftest import Clock

ALICE, BOB = b"alice-0123456789abcdef", b"bob-0123456789abcdef"
HOW = "send the header 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"


@pytest.fixture
def ring(tmp_path: Path) -> Callable[..., KeyRing]:
    """Make the keys of a file with these lines."""

    def make(*lines: str, mode: int = 0o600) -> KeyRing:
        path = tmp_path / "keys"
        path.write_text("\n".join(lines), "utf-8")
        path.chmod(mode)
        return KeyRing(SecurityConfig(api_keys=str(path)))

    return make


def key(pending: int = 0, rate: float = 0.0) -> ApiKey:
    return ApiKey("alice", b"", pending, rate)


def test_a_key_without_limits_counts_its_requests(clock: Clock) -> None:
    client = KeyClient(key())
    for _ in range(50):
        client.check()
    assert (client.name, client.requests, client.refused, client.limited) == ("alice", 50, 0, True)


def test_a_key_may_have_so_many_requests_pending(clock: Clock) -> None:
    client = KeyClient(key(pending=2))
    client.pending = 1
    client.check()
    client.pending = 2
    with pytest.raises(
        Overloaded, match=r"^2 requests with API key 'alice' are pending, the most that it may have$"
    ):
        client.check()
    with pytest.raises(Overloaded):
        client.check()
    assert (client.requests, client.refused) == (3, 2)


def test_a_key_may_send_so_many_requests_a_second(clock: Clock) -> None:
    client = KeyClient(key(rate=4.0))
    for _ in range(4):
        client.check()
    with pytest.raises(
        Overloaded, match=r"^more than 4 requests a second with API key 'alice'; try again in 0\.2 s$"
    ) as refused:
        client.check()
    assert refused.value.retry_after_s == 0.25
    assert (client.requests, client.refused) == (5, 1)
    clock.now += 0.125
    with pytest.raises(Overloaded) as refused:
        client.check()
    assert refused.value.retry_after_s == 0.125
    clock.now += 0.125
    client.check()
    with pytest.raises(Overloaded):
        client.check()
    assert client.refused == 3


def test_an_idle_key_saves_up_one_second_of_requests(clock: Clock) -> None:
    client = KeyClient(key(rate=2.0))
    clock.now += 60.0
    for _ in range(2):
        client.check()
    with pytest.raises(Overloaded):
        client.check()


def test_a_rate_below_one_a_second_allows_one_request_at_first(clock: Clock) -> None:
    client = KeyClient(key(rate=0.5))
    client.check()
    with pytest.raises(Overloaded) as refused:
        client.check()
    assert refused.value.retry_after_s == 2.0
    clock.now += 100.0
    client.check()
    with pytest.raises(Overloaded):
        client.check()


def test_a_peer_is_one_client_and_idle_peers_are_dropped_when_there_are_many() -> None:
    peers = Peers()
    busy, idle = peers.find_client("busy"), peers.find_client("idle")
    busy.pending = 1
    for number in range(MAX_PEERS - 3):
        peers.find_client(str(number))
    assert peers.find_client("last before the limit") is not busy
    assert (peers.find_client("busy"), peers.find_client("idle")) == (busy, idle)
    peers.find_client("one more")
    assert peers.find_client("busy") is busy
    assert peers.find_client("idle") is not idle


def test_a_key_is_found_by_itself_or_by_its_digest(ring: Callable[..., KeyRing]) -> None:
    keys = ring(f"alice:{ALICE.decode()} pending=3", f"bob:sha256:{hashlib.sha256(BOB).hexdigest()} rate=2")
    alice, bob = keys.find(ALICE), keys.find(BOB)
    assert (alice.name, alice.max_pending, bob.name, bob.rate) == ("alice", 3, "bob", 2.0)


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        (None, f"this service asks for an API key: {HOW}"),
        (b"mallory-0123456789abcdef", f"the API key is not one of this service's: {HOW}"),
        (b"", f"the API key is not one of this service's: {HOW}"),
    ],
    ids=["no key", "an unknown key", "an empty key"],
)
def test_requests_without_a_known_key_are_rejected(
    ring: Callable[..., KeyRing], shown: bytes | None, message: str
) -> None:
    with pytest.raises(Unauthenticated) as refused:
        ring(f"alice:{ALICE.decode()}").find(shown)
    assert str(refused.value) == message


def test_a_reload_keeps_counts_replaces_limits_and_drops_keys(ring: Callable[..., KeyRing]) -> None:
    keys = ring(f"alice:{ALICE.decode()} pending=3", f"bob:{BOB.decode()}")
    alice = keys.find(ALICE)
    alice.check()
    ring(f"alice:{ALICE.decode()} pending=9", "alice:another-0123456789abcdef pending=9")
    keys.reload()
    assert keys.find(ALICE) is alice
    assert keys.find(b"another-0123456789abcdef") is alice, "a client may have several keys"
    assert (alice.requests, alice.max_pending) == (1, 9)
    with pytest.raises(Unauthenticated):
        keys.find(BOB)


def test_a_reload_of_an_invalid_file_raises_and_changes_nothing(ring: Callable[..., KeyRing]) -> None:
    keys = ring(f"alice:{ALICE.decode()}")
    with pytest.raises(ConfigError):
        ring("no key at all")
    with pytest.raises(ConfigError):
        keys.reload()
    assert keys.find(ALICE).name == "alice"


def test_a_key_file_that_others_can_read_is_warned_of(
    ring: Callable[..., KeyRing], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ring(f"alice:{ALICE.decode()}")
        assert not caplog.messages
        ring(f"alice:{ALICE.decode()}", mode=0o644)
    (message,) = caplog.messages
    assert message.startswith("security.api_keys: other users can read /")
    assert message.endswith("/keys; chmod 600 it")


def test_figures_name_each_key(ring: Callable[..., KeyRing]) -> None:
    keys = ring(f"alice:{ALICE.decode()}", f"bob:{BOB.decode()}")
    keys.find(BOB).check()
    figures = [(dict(labels), value) for labels, value in keys.figures(lambda client: client.requests)]
    assert figures == [({"key": "alice"}, 0.0), ({"key": "bob"}, 1.0)]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], None),
        ([(b"x-other", b"1"), (b"x-api-key", b" k1 ")], b"k1"),
        ([(b"x-api-key", b"k1"), (b"authorization", b"Bearer k2")], b"k1"),
        ([(b"authorization", b"  bEARER   k 2 "), (b"x-api-key", b"k1")], b"k 2"),
        ([(b"authorization", b"Basic abc"), (b"x-api-key", b"k1")], b"k1"),
        ([(b"authorization", b"Basic abc")], None),
    ],
    ids=["no headers", "X-API-Key", "the first counts", "Bearer", "another scheme", "no key"],
)
def test_the_key_is_read_from_either_header(
    headers: list[tuple[bytes, bytes]], expected: bytes | None
) -> None:
    assert find_key(headers) == expected


HEALTH = (b"/health/live", b"/health/ready")


def guard(keys: KeyRing | None, restricted: RestrictedApis | None = None, **security: bool) -> HttpGuard:
    config = SecurityConfig.model_validate(security)
    return HttpGuard(keys, config, HEALTH, restricted, lambda url: url.decode().strip("/"))


def test_without_keys_the_connection_is_the_client() -> None:
    connection = Client()
    assert guard(None).client(b"/predict", [], connection) is connection


def test_with_keys_the_client_is_that_of_the_key(ring: Callable[..., KeyRing]) -> None:
    keys, connection = ring(f"alice:{ALICE.decode()}"), Client()
    assert guard(keys).client(b"/predict", [(b"x-api-key", ALICE)], connection) is keys.find(ALICE)
    with pytest.raises(Unauthenticated):
        guard(keys).client(b"/predict", [], connection)


@pytest.mark.parametrize(
    ("security", "closed"),
    [
        ({"open_health": True, "open_metrics": True}, []),
        ({"open_health": False, "open_metrics": True}, [*HEALTH]),
        ({"open_health": True, "open_metrics": False}, [b"/metrics"]),
    ],
)
def test_open_pages_need_no_key(
    ring: Callable[..., KeyRing], security: dict[str, bool], closed: list[bytes]
) -> None:
    pages = [b"/", b"/docs", *HEALTH, b"/metrics"]
    checked, connection = guard(ring(f"alice:{ALICE.decode()}"), **security), Client()
    for page in pages:
        if page in closed:
            with pytest.raises(Unauthenticated):
                checked.client(page, [], connection)
        else:
            client = checked.client(page, [], connection)
            assert client.name == "" and client is not connection


def test_a_restricted_api_needs_its_header() -> None:
    restricted = RestrictedApis(
        [Restriction("load", "x-admin", "secret"), Restriction("health", "x-other", "1")], "API"
    )
    checked, connection = guard(None, restricted), Client()
    assert checked.client(b"/predict", [], connection) is connection
    headers = [(b"x-other", b"1"), (b"x-admin", b"secret"), (b"x-admin", b"wrong")]
    assert checked.client(b"/load", headers, connection) is connection
    for headers in ([], [(b"x-other", b"secret")], [(b"x-admin", b"wrong"), (b"x-admin", b"secret")]):
        with pytest.raises(RestrictedApi) as refused:
            checked.client(b"/load", headers, connection)
        assert str(refused.value) == "This API is restricted, expecting header 'x-admin'"


def test_the_log_names_a_client_by_its_address_and_key() -> None:
    assert name_peer("10.0.0.1", None) == "10.0.0.1"
    assert name_peer("10.0.0.1", Client()) == "10.0.0.1"
    assert name_peer("10.0.0.1", Client("alice")) == "10.0.0.1 (alice)"


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("ipv4:10.0.0.1:40000", "10.0.0.1"),
        ("ipv6:%5B::1%5D:40000", "::1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:40000", "fe80::1%eth0"),
        ("unix:", "?"),
        ("", "?"),
    ],
)
def test_a_grpc_caller_is_named_without_the_port_of_its_connection(peer: str, expected: str) -> None:
    assert name_caller(peer) == expected
    token = CALLER.set(Client("bob"))
    try:
        assert name_caller(peer) == f"{expected} (bob)"
    finally:
        CALLER.reset(token)
