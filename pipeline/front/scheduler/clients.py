"""Which client a request is of: by API keys, with their limits, or by addresses; and who may ask at all."""

from __future__ import annotations

import hmac
import logging
import time
import urllib.parse
from collections.abc import Callable, Collection, Iterable
from contextvars import ContextVar

from pipeline.config.api_keys import ApiKey, hash_key, open_to_others, read_api_keys
from pipeline.config.config_file import SecurityConfig
from pipeline.errors import Overloaded, Unauthenticated
from pipeline.front.scheduler.admission import Client
from pipeline.front.scheduler.restricted_apis import RestrictedApis

log = logging.getLogger(__name__)

AUTHORIZATION, API_KEY = b"authorization", b"x-api-key"
MOST_PEERS = 1024  # then those are forgotten that wait for nothing
_HOW = "send the header 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"


class KeyClient(Client):
    """All who show a key of one name. rate: a bucket of one second's requests, filled as time goes by."""

    __slots__ = ("_filled_at", "_tokens", "most_pending", "rate", "refused", "requests")

    limited = True

    def __init__(self, key: ApiKey) -> None:
        super().__init__(key.name)
        self.requests = 0
        self.refused = 0
        self._filled_at = time.monotonic()
        self.take_limits(key)
        self._tokens = max(1.0, self.rate)

    def take_limits(self, key: ApiKey) -> None:
        self.most_pending, self.rate = key.pending, key.rate

    def check(self) -> None:
        """Count a request. Raises Overloaded where it is one too many."""
        self.requests += 1
        if self.most_pending and self.pending >= self.most_pending:
            self.refused += 1
            raise Overloaded(
                f"{self.pending} requests with API key {self.name!r} are pending, the most that it may have"
            )
        if self.rate:
            self._take_token(time.monotonic())

    def _take_token(self, now: float) -> None:
        self._tokens = min(max(1.0, self.rate), self._tokens + (now - self._filled_at) * self.rate)
        self._filled_at = now
        if self._tokens < 1:
            self.refused += 1
            wait_s = (1 - self._tokens) / self.rate
            raise Overloaded(
                f"more than {self.rate:g} requests a second with API key {self.name!r}; try again in "
                f"{wait_s:.1f} s",
                retry_after_s=wait_s,
            )
        self._tokens -= 1


class Peers:
    """The clients of gRPC, whose connections are known by their addresses alone."""

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}

    def of(self, peer: str) -> Client:
        client = self._clients.get(peer)
        if client is None:
            if len(self._clients) >= MOST_PEERS:
                self._clients = {name: known for name, known in self._clients.items() if known.pending}
            client = self._clients[peer] = Client()
        return client


class KeyRing:
    """The clients of `security.api_keys`. Keys are known by their digests alone."""

    def __init__(self, security: SecurityConfig) -> None:
        """Raises ConfigError for a file that can't be used."""
        self._security = security
        self._clients: dict[str, KeyClient] = {}
        self._by_digest: dict[bytes, tuple[bytes, KeyClient]] = {}
        self.reload()

    def reload(self) -> None:
        """Read the file again: counts go on, removed keys are refused from now on. Raises ConfigError."""
        keys = read_api_keys(self._security)
        if open_to_others(str(self._security.api_keys)):
            log.warning("security.api_keys: other users can read %s; chmod 600 it", self._security.api_keys)
        clients: dict[str, KeyClient] = {}
        for key in keys:
            client = clients.setdefault(key.name, self._clients.get(key.name) or KeyClient(key))
            client.take_limits(key)
        self._clients = clients
        self._by_digest = {key.digest: (key.digest, clients[key.name]) for key in keys}

    def find(self, key: bytes | None) -> KeyClient:
        """Whose key it is. Raises Unauthenticated.

        It is looked up by its digest, so that the time it takes says nothing of the keys that are known.
        """
        if key is None:
            raise Unauthenticated(f"this service asks for an API key: {_HOW}")
        digest = hash_key(key)
        known, client = self._by_digest.get(digest, (b"", None))
        if client is None or not hmac.compare_digest(known, digest):
            raise Unauthenticated(f"the API key is not one of this service's: {_HOW}")
        return client

    def figures(self, read: Callable[[KeyClient], float]) -> Iterable[tuple[dict[str, str], float]]:
        """For /metrics, by name."""
        return [({"key": name}, float(read(client))) for name, client in self._clients.items()]


def shown_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The key among headers whose names are in lower case; the first one counts."""
    for name, value in headers:
        if name == API_KEY:
            return value.strip()
        if name == AUTHORIZATION:
            scheme, _, key = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                return key.strip()
    return None


class HttpGuard:
    """Admits or refuses a request as soon as its headers have arrived.

    health: the pages that `security.open_health` leaves open. find_api: returns the API of a URL.
    """

    def __init__(
        self,
        keys: KeyRing | None,
        security: SecurityConfig,
        health: Collection[bytes],
        restricted: RestrictedApis | None,
        find_api: Callable[[bytes], str],
    ) -> None:
        self._keys = keys
        self._restricted = restricted
        self._find_api = find_api
        metrics = (b"/metrics",) if security.open_metrics else ()
        opened = health if security.open_health else ()
        # Those two hold nothing, and the second asks for the key.
        self._open = frozenset((b"/", b"/docs", *opened, *metrics))
        self._anyone = Client()

    def client(self, url: bytes, headers: Collection[tuple[bytes, bytes]], connection: Client) -> Client:
        """Return the client of a request. Raises Unauthenticated and RestrictedApi.

        connection: the client of requests without a key.
        """
        client = connection
        if self._keys is not None:
            client = self._anyone if url in self._open else self._keys.find(shown_key(headers))
        if self._restricted is not None:
            self._restricted.check(self._find_api(url), headers)
        return client


def named(peer: str, client: Client | None) -> str:
    """An address as the log tells it: with the name of the client's API key."""
    return f"{peer} ({client.name})" if client is not None and client.name else peer


def caller(peer: str) -> str:
    """Who makes a gRPC call, as sums tell it: without the port, which each connection has anew.

    peer: what gRPC calls it, ipv4:10.0.0.1:40000 or ipv6:%5B::1%5D:40000.
    """
    address = urllib.parse.unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
    return named(address or "?", CALLER.get())


CALLER: ContextVar[Client | None] = ContextVar("caller", default=None)
"""Who makes the gRPC call of the current task, where keys are asked for."""
