"""HttpGuard: checks API keys and the headers of restricted APIs."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pipeline.api.restrictions import RestrictedApis
from pipeline.config.config_file import SecurityConfig
from pipeline.front.dag_run import Client
from pipeline.front.scheduler.admission import KeyRing, shown_key


class HttpGuard:
    """Authenticates a request as soon as its headers have arrived."""

    def __init__(
        self,
        keys: KeyRing | None,
        security: SecurityConfig,
        health: Collection[bytes],
        restricted: RestrictedApis | None,
        find_api: Callable[[bytes], str],
    ) -> None:
        """health: paths that `security.open_health` opens. find_api: returns the API of a URL."""
        self._keys = keys
        self._restricted = restricted
        self._find_api = find_api
        metrics = (b"/metrics",) if security.open_metrics else ()
        opened = health if security.open_health else ()
        # The first two pages reveal nothing, and /docs prompts for the key.
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
