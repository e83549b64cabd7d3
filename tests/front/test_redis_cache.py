"""Responses in Redis, with a server in this process; tests/system/test_redis.py has Debian's server."""

from __future__ import annotations

import asyncio
import sys

import pytest

from pipeline.api.cache_settings import RedisSettings
from pipeline.errors import ConfigError
from pipeline.front.cache import redis_cache
from pipeline.front.cache.keys import CacheKey
from pipeline.front.cache.local import CachedOutput
from pipeline.front.cache.redis_cache import MAX_ENTRY_BYTES, RETRY_S, RedisCache
from pipeline.front.cache.response_cache import Flight, ResponseCache
from pipeline.front.metrics.metrics import CacheFigures
from pipeline.messages.messages import Outcome
from tests.front.test_response_cache import Waiting

OUTPUT = CachedOutput(Outcome.ANSWER, (b"head", b"tensor"))
KEY = CacheKey(b"a")


class Server:
    """A Redis server in this process, in place of redis-py's client."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.is_down = False
        self.is_slow = False
        self.commands = 0

    async def getrange(self, name: bytes, start: int, end: int) -> bytes:
        await self.accept()
        return self.entries.get(name, b"")[start : end + 1]

    async def set(self, name: bytes, value: bytes) -> None:
        await self.accept()
        self.entries[name] = value

    async def accept(self) -> None:
        self.commands += 1
        if self.is_down:
            raise ConnectionError("refused")
        if self.is_slow:
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        pass


async def find(cache: RedisCache, key: CacheKey) -> CachedOutput | None:
    result: asyncio.Future[CachedOutput | None] = asyncio.get_running_loop().create_future()
    cache.find(key, result.set_result)
    return await result


async def store(cache: RedisCache, key: CacheKey, server: Server) -> None:
    assert cache.store(key, OUTPUT)
    while not server.entries:
        await asyncio.sleep(0)


def test_a_response_is_found_by_its_whole_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(redis_cache, "_get_name", lambda key: b"the name of every key")
        cache = RedisCache(RedisSettings("h"), server := Server())
        await store(cache, KEY, server)
        assert await find(cache, KEY) == OUTPUT
        assert await find(cache, CacheKey(b"b")) is None

    asyncio.run(run())


def test_entries_of_other_programs_are_misses() -> None:
    async def run() -> None:
        cache = RedisCache(RedisSettings("h"), server := Server())
        for entry in (b"", b"\xff\xff", b"\x92\xc4\x01a\xa1x", b"\x92\xc4\x01a\x90", b"{}"):
            server.entries = {redis_cache._get_name(KEY): entry}
            assert await find(cache, KEY) is None

    asyncio.run(run())


def test_a_server_that_is_down_gets_one_command_in_each_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(redis_cache.time, "monotonic", lambda: now)

    async def run() -> None:
        nonlocal now
        cache = RedisCache(RedisSettings("h"), server := Server())
        server.is_down = True
        for _ in range(3):
            assert await find(cache, KEY) is None
        assert (server.commands, cache.failures) == (1, 1)
        now += RETRY_S
        assert [await find(cache, KEY) for _ in range(3)] == [None] * 3
        assert (server.commands, cache.failures) == (2, 2)
        server.is_down = False
        now += RETRY_S
        assert await find(cache, KEY) is None
        await store(cache, KEY, server)
        assert await find(cache, KEY) == OUTPUT

    asyncio.run(run())


def test_a_slow_server_delays_a_request_by_the_timeout_alone() -> None:
    async def run() -> None:
        cache = RedisCache(RedisSettings("h", timeout_s=0.01), server := Server())
        server.is_slow = True
        assert await find(cache, KEY) is None
        assert cache.failures == 1

    asyncio.run(run())


def test_lookups_beyond_the_connections_are_misses() -> None:
    async def run() -> None:
        cache = RedisCache(RedisSettings("h", pool_size=1), server := Server())
        server.is_slow = True
        cache.find(KEY, lambda output: None)
        assert await find(cache, KEY) is None
        await cache.close()
        assert (server.commands, cache.failures) == (1, 0)

    asyncio.run(run())


def test_a_large_response_is_not_stored() -> None:
    output = CachedOutput(Outcome.ANSWER, (bytes(MAX_ENTRY_BYTES),))
    assert not RedisCache(RedisSettings("h"), server := Server()).store(KEY, output)
    assert server.commands == 0


@pytest.mark.parametrize("is_stored", [True, False])
def test_identical_requests_share_a_lookup(is_stored: bool) -> None:
    async def run() -> list[list[object]]:
        cache = ResponseCache(RedisCache(RedisSettings("h"), Server()))
        waiting = [Waiting() for _ in range(4)]
        flight = Flight(cache, KEY, CacheFigures(), waiting[0])
        flight.waiters.extend(waiting[1:])
        waiting[0].wanted = False  # its client leaves during the lookup
        waiting[2].wanted = False
        flight.end_lookup(0, OUTPUT if is_stored else None)
        await asyncio.sleep(0)
        return [each.got for each in waiting]

    output: list[object] = [OUTPUT.parts]
    expected = [[], output, [], output] if is_stored else [[], ["runs for all"], [], []]
    assert asyncio.run(run()) == expected


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("redis", "redis.asyncio"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"--cache-config=redis needs the package redis: pip install"):
        RedisCache(RedisSettings("h"))
