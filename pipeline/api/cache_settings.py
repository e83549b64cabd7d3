"""The settings of the response cache: `--cache-config`, and the older `--response-cache-byte-size`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from pipeline.errors import ConfigError

LOCAL, REDIS = "local", "redis"
_FORM = "write CACHE,NAME=VALUE, as in local,size=1048576"
_REDIS_TEXTS = ("host", "user", "password")
_REDIS_NUMBERS = {  # with their largest values
    "port": 65_535,
    "db": 1_000_000,
    "pool_size": 1024,
    "connect_timeout": 60_000,  # ms
    "socket_timeout": 60_000,
    "wait_timeout": 60_000,
}
_REDIS_TIMES = ("connect_timeout", "socket_timeout", "wait_timeout")
_MAX_DIGITS = 9
REDIS_TIMEOUT_S = 0.5


class LocalSettings(msgspec.Struct, frozen=True, tag=LOCAL):
    """The settings of a response cache in the memory of the server."""

    size: int  # bytes


class RedisSettings(msgspec.Struct, frozen=True, tag=REDIS):
    """The settings of a response cache in a Redis server."""

    host: str
    port: int = 6379
    user: str = ""
    password: str = ""
    db: int = 0
    pool_size: int = 64  # connections
    timeout_s: float = REDIS_TIMEOUT_S  # of a lookup or an insertion, with the connection


CacheSettings = LocalSettings | RedisSettings


def parse_cache_settings(arguments: Sequence[str], byte_size: int | None) -> CacheSettings | None:
    """Parse the values of `--cache-config` and of `--response-cache-byte-size`, the older flag.

    Return None if neither is set, or if the older flag sets a size of 0. Raises ConfigError for a malformed
    value, an unknown cache or setting, and for two caches.
    """
    if byte_size is not None:
        if arguments:
            raise ConfigError(
                "--response-cache-byte-size and --cache-config both configure the response cache: remove "
                "--response-cache-byte-size"
            )
        if byte_size < 0:
            raise ConfigError(f"--response-cache-byte-size={byte_size}: the size is a number of bytes")
        return LocalSettings(byte_size) if byte_size else None
    settings: dict[str, dict[str, str]] = {}
    for text in arguments:
        kind, _, setting = text.partition(",")
        name, equals, value = setting.partition("=")
        if not kind or not name or not equals:
            raise ConfigError(f"--cache-config={text}: {_FORM}")
        settings.setdefault(kind, {})[name] = value
    if len(settings) > 1:
        raise ConfigError(
            f"--cache-config names two caches, {' and '.join(settings)}: a server has one, remove the others"
        )
    return next((_build_settings(kind, values) for kind, values in settings.items()), None)


def _build_settings(kind: str, values: Mapping[str, str]) -> CacheSettings:
    if kind == REDIS:
        return _build_redis_settings(values)
    if kind != LOCAL:
        raise ConfigError(f"--cache-config={kind}: there is no such cache, only {LOCAL} and {REDIS}; {_FORM}")
    if unknown := sorted(values.keys() - {"size"}):
        raise ConfigError(f"--cache-config={kind},{unknown[0]}: the cache {kind} has the setting size alone")
    size = values.get("size", "")
    if not size.isdecimal() or not int(size):
        raise ConfigError(f"--cache-config={kind},size={size}: the size is a number of bytes from 1 on")
    return LocalSettings(int(size))


def _build_redis_settings(values: Mapping[str, str]) -> RedisSettings:
    """Return the settings of Redis. Times of 0, Triton's default, are replaced by this server's own limit."""
    names = (*_REDIS_TEXTS, *_REDIS_NUMBERS)
    if unknown := sorted(values.keys() - set(names)):
        raise ConfigError(
            f"--cache-config={REDIS},{unknown[0]}: the cache {REDIS} has the settings {', '.join(names)}"
        )
    if not values.get("host"):
        raise ConfigError(f"--cache-config={REDIS} needs a host: add --cache-config={REDIS},host=NAME")
    numbers = {name: _parse_number(name, value) for name, value in values.items() if name in _REDIS_NUMBERS}
    times = [numbers.pop(name) for name in _REDIS_TIMES if name in numbers]
    for name in ("port", "pool_size"):
        if numbers.get(name) == 0:
            raise ConfigError(f"--cache-config={REDIS},{name}=0: the value is a whole number from 1 on")
    return RedisSettings(
        values["host"],
        user=values.get("user") or os.environ.get("TRITONCACHE_REDIS_USERNAME", ""),
        password=values.get("password") or os.environ.get("TRITONCACHE_REDIS_PASSWORD", ""),
        timeout_s=sum(times) / 1000 if any(times) else REDIS_TIMEOUT_S,
        **numbers,
    )


def _parse_number(name: str, value: str) -> int:
    limit = _REDIS_NUMBERS[name]
    if not value.isdecimal() or len(value) > _MAX_DIGITS or int(value) > limit:
        raise ConfigError(
            f"--cache-config={REDIS},{name}={value}: the value is a whole number, {limit} at most"
        )
    return int(value)
