"""The response cache in one process: colliding hashes, the bound of its bytes, requests in flight."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict

import numpy as np
import pytest

from pipeline.api.app import ServedModel
from pipeline.api.cache_settings import LocalSettings, RedisSettings, parse_cache_settings
from pipeline.errors import ConfigError, ServingError
from pipeline.front.cache import keys
from pipeline.front.cache.keys import CacheKey, build_request_key
from pipeline.front.cache.local import ENTRY_BYTES, CachedOutput, LocalCache
from pipeline.front.cache.response_cache import Flight, ResponseCache
from pipeline.front.dag_run import Request
from pipeline.front.metrics.metrics import CacheFigures
from pipeline.messages.messages import Outcome
from pipeline.triton.ensemble import build_model_dag


def output(data: bytes) -> CachedOutput:
    return CachedOutput(Outcome.ANSWER, (data,))


def test_colliding_hashes_never_give_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "hash_key", lambda data: 0)
    cache, rng = LocalCache(100_000), random.Random(0)
    found = 0
    for _ in range(20_000):
        number = rng.randrange(200)
        array = np.array([number], np.int64)
        key = build_request_key(b"model", Request("m", "infer", {"X": array}), 1000)
        assert key is not None
        answer = cache.find(key)
        if answer is None:
            cache.store(key, output(array.tobytes()))
        else:
            found += 1
            assert answer.parts == (array.tobytes(),)
    assert found > 10_000


def test_names_types_shapes_and_bounds_of_tensors_are_in_the_key() -> None:
    zeros = np.zeros(4, np.int32)
    inputs = [
        {"X": zeros},
        {"Y": zeros},
        {"X": zeros.astype(np.uint32)},
        {"X": zeros.reshape(2, 2)},
        {"X": zeros[:2], "Y": zeros[:2]},
        {"X": zeros[:1], "Y": zeros[:3]},
        {"X": zeros.tobytes()},
        {"X": [0, 0, 0, 0]},
    ]
    found = {build_request_key(b"model", Request("m", "infer", each), 1000) for each in inputs}
    assert len(found - {None}) == len(inputs)
    assert build_request_key(b"model", Request("m", "infer", {"X": zeros}), 15) is None  # over max_bytes
    assert build_request_key(b"other", Request("m", "infer", {"X": zeros}), 1000) not in found


@pytest.mark.parametrize("seed", range(5))
def test_the_least_recently_used_are_evicted_by_bytes(seed: int) -> None:
    rng = random.Random(seed)
    most = rng.randrange(2000, 8000)
    cache, expected = LocalCache(most), OrderedDict[bytes, bytes]()
    for step in range(2000):
        name = b"%d" % rng.randrange(30)
        if rng.random() < 0.5:
            answer = cache.find(CacheKey(name))
            assert (None if answer is None else answer.parts[0]) == expected.get(name), step
            if name in expected:
                expected.move_to_end(name)
        else:
            data = bytes(rng.randrange(most if rng.random() < 0.1 else 1500))
            fits = len(name) + len(data) + ENTRY_BYTES <= most
            assert cache.store(CacheKey(name), output(data)) is fits
            if fits:
                expected.pop(name, None)
                expected[name] = data
            while sum(len(n) + len(d) + ENTRY_BYTES for n, d in expected.items()) > most:
                expected.popitem(last=False)
        assert cache.used_bytes == sum(len(n) + len(d) + ENTRY_BYTES for n, d in expected.items())
        assert len(cache) == len(expected)
    assert cache.evictions


class Waiting:
    """A request that records what happens to it."""

    def __init__(self) -> None:
        self.wanted = True
        self.got: list[object] = []

    def accept(self, output: CachedOutput) -> None:
        self.got.append(output.parts)

    def run(self, flight: Flight | None) -> None:
        self.got.append("runs alone" if flight is None else "runs for all")

    def fail(self, error: ServingError) -> None:
        self.got.append(error)


async def start_flight(waiters: int) -> tuple[ResponseCache, Flight, list[Waiting]]:
    cache = ResponseCache(LocalCache(10_000))
    waiting = [Waiting() for _ in range(1 + waiters)]
    flight = Flight(cache, CacheKey(b"key"), CacheFigures(), waiting[0], lookup_ns=0)
    flight.waiters.extend(waiting[1:])
    return cache, flight, waiting


def test_identical_requests_get_the_output_of_the_first() -> None:
    async def run() -> list[list[object]]:
        cache, flight, waiting = await start_flight(3)
        waiting[2].wanted = False  # its client has left
        flight.succeed(Outcome.ANSWER, [b"answer"])
        await asyncio.sleep(0)
        assert cache.outputs.find(CacheKey(b"key")) == output(b"answer")
        return [each.got for each in waiting[1:]]

    assert asyncio.run(run()) == [[(b"answer",)], [], [(b"answer",)]]


def test_the_next_request_runs_after_the_client_of_the_first_has_left() -> None:
    async def run() -> list[list[object]]:
        _, flight, waiting = await start_flight(3)
        waiting[1].wanted = False
        flight.end(None)
        await asyncio.sleep(0)
        flight.abandon(waiting[0])  # of an earlier leader: without effect
        flight.succeed(Outcome.ANSWER, [b"answer"])
        await asyncio.sleep(0)
        return [each.got for each in waiting]

    assert asyncio.run(run()) == [[], [], ["runs for all"], [(b"answer",)]]


def test_an_error_of_the_first_request_is_not_that_of_the_others() -> None:
    async def run() -> list[list[object]]:
        _, flight, waiting = await start_flight(2)
        flight.end(ServingError("failed"))
        await asyncio.sleep(0)
        return [each.got for each in waiting]

    assert asyncio.run(run()) == [[], ["runs alone"], ["runs alone"]]


def test_a_model_that_keeps_the_order_of_requests_is_not_cached() -> None:
    config = {"response_cache": {"enable": True}, "dynamic_batching": {"preserve_ordering": False}}
    model = ServedModel("m", build_model_dag("m:1"), config=config)
    assert model.uses_cache
    config["dynamic_batching"]["preserve_ordering"] = True
    assert not model.uses_cache


def test_flags_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_cache_settings(("local,size=1024",), None) == LocalSettings(1024)
    assert parse_cache_settings((), 1024) == LocalSettings(1024)
    assert parse_cache_settings((), 0) is parse_cache_settings((), None) is None
    assert parse_cache_settings(("redis,host=a",), None) == RedisSettings("a")
    monkeypatch.setenv("TRITONCACHE_REDIS_PASSWORD", "secret")
    arguments = ["redis,host=a", "redis,port=7000", "redis,connect_timeout=20", "redis,socket_timeout=30"]
    settings = RedisSettings("a", 7000, password="secret", timeout_s=0.05)
    assert parse_cache_settings(arguments, None) == settings


@pytest.mark.parametrize(
    ("arguments", "size", "message"),
    [
        (("local,size=1", "other,size=1"), None, "names two caches, local and other"),
        (("local,size=1",), 1, "--response-cache-byte-size and --cache-config both configure"),
        (("local",), None, "write CACHE,NAME=VALUE"),
        (("local,size=0",), None, "a number of bytes from 1 on"),
        (("local,size=1MB",), None, "a number of bytes from 1 on"),
        (("local,room=1",), None, "has the setting size alone"),
        (("disk,size=1",), None, "there is no such cache, only local and redis"),
        (("redis,port=1",), None, "--cache-config=redis needs a host"),
        (("redis,host=a", "redis,hots=b"), None, "redis,hots: the cache redis has the settings host, user"),
        (("redis,host=a", "redis,port=65536"), None, "redis,port=65536: the value is a whole number, 65535"),
        (("redis,host=a", "redis,pool_size=0"), None, "pool_size=0: the value is a whole number from 1"),
        ((), -1, "the size is a number of bytes"),
    ],
)
def test_a_flawed_flag_of_the_cache_is_refused(
    arguments: tuple[str, ...], size: int | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_cache_settings(arguments, size)
