"""Responses in a Redis server that several servers may share: `--cache-config=redis,host=NAME`.

Each entry has the whole key of its request. A collision of digests therefore never returns the response to
another request. A lookup that fails or takes too long is a miss, and the request runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from pipeline.api.cache_settings import RedisSettings
from pipeline.errors import ConfigError, get_error_text
from pipeline.front.cache.keys import CacheKey
from pipeline.front.cache.local import CachedOutput
from pipeline.messages.messages import Outcome

log = logging.getLogger(__name__)

MAX_ENTRY_BYTES = 16 << 20  # of the key and the response
RETRY_S = 1.0  # after a failure, between the lookups that try the server again; the others are misses
_HEAD_BYTES = 1 << 12  # of an encoded entry, besides its key and response
_PREFIX = b"paddlewheel:response:"


class _Entry(msgspec.Struct, array_like=True):
    key: bytes
    parts: list[bytes]


class RedisCache:
    """Client of a Redis server that stores responses."""

    def __init__(self, settings: RedisSettings, client: Any = None) -> None:
        """Create the cache. Raises ConfigError if the package redis is not installed.

        client: used in place of a redis-py client, for tests.
        """
        self.max_bytes = MAX_ENTRY_BYTES
        self.failures = 0
        self._settings = settings
        self._client = create_client(settings) if client is None else client
        self._is_failing = False
        self._next_try = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, key: CacheKey, then: Callable[[CachedOutput | None], None]) -> None:
        """Look up a key in Redis, and call `then` with the response, or with None if there is none."""
        if self._may_ask():
            self._start(self._find(key, then))
        else:
            asyncio.get_running_loop().call_soon(then, None)

    def store(self, key: CacheKey, output: CachedOutput) -> bool:
        """Store a response in the background. Return False for a response that is too large."""
        if len(key.data) + output.size > MAX_ENTRY_BYTES:
            return False
        if self._may_ask():
            self._start(self._store(key, output))
        return True

    async def close(self) -> None:
        """Cancel the lookups and insertions, and close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    def _may_ask(self) -> bool:
        """Return whether another command may be sent to Redis.

        No command is sent while all connections are busy, because it would wait. A failing server gets one
        command every `RETRY_S` seconds.
        """
        if len(self._tasks) >= self._settings.pool_size:
            return False
        if self._is_failing:
            now = time.monotonic()
            if now < self._next_try:
                return False
            self._next_try = now + RETRY_S
        return True

    def _start(self, command: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(command)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _find(self, key: CacheKey, then: Callable[[CachedOutput | None], None]) -> None:
        last = MAX_ENTRY_BYTES + _HEAD_BYTES  # whatever another program has stored under the name
        data = await self._send(lambda client: client.getrange(_get_name(key), 0, last))
        then(_decode(key, data))

    async def _store(self, key: CacheKey, output: CachedOutput) -> None:
        entry = msgspec.msgpack.encode(_Entry(key.data, list(output.parts)))
        await self._send(lambda client: client.set(_get_name(key), entry))

    async def _send(self, command: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """Return the server's answer to a command; None after an error or the timeout."""
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                answer = await command(self._client)
        except Exception as exc:  # redis-py's, of sockets, and whatever a foreign server's answer causes
            self._record_failure(exc)
            return None
        if self._is_failing:
            self._is_failing = False
            log.info("The Redis server of --cache-config=redis answers again")
        return answer

    def _record_failure(self, error: Exception) -> None:
        self.failures += 1
        if not self._is_failing:
            log.warning(
                "The Redis server of --cache-config=redis fails; requests run without the cache: %s: %s",
                type(error).__name__, get_error_text(error),
            )  # fmt: skip
        self._is_failing = True
        self._next_try = time.monotonic() + RETRY_S


def create_client(settings: RedisSettings) -> Any:
    """Return a redis-py client, which connects to the Redis server at its first command.

    Raises ConfigError if the package redis is not installed.
    """
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ModuleNotFoundError:
        raise ConfigError(
            "--cache-config=redis needs the package redis: pip install 'paddlewheel[redis]'"
        ) from None
    return Redis(
        host=settings.host,
        port=settings.port,
        db=settings.db,
        username=settings.user or None,
        password=settings.password or None,
        max_connections=settings.pool_size,
        socket_timeout=settings.timeout_s,
        socket_connect_timeout=settings.timeout_s,
        retry=Retry(NoBackoff(), 0),
    )


def _get_name(key: CacheKey) -> bytes:
    return _PREFIX + hashlib.sha256(key.data).digest()


def _decode(key: CacheKey, data: bytes | None) -> CachedOutput | None:
    """Return the response in a Redis entry; None if it is missing, invalid or belongs to another key."""
    if not data:
        return None
    try:
        entry = msgspec.msgpack.decode(data, type=_Entry)
    except msgspec.MsgspecError:
        return None
    if entry.key != key.data or not entry.parts:
        return None
    return CachedOutput(Outcome.ANSWER, tuple(entry.parts))
