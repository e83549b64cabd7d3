"""The settings of the response cache: `--cache-config`, and the older `--response-cache-byte-size`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pipeline.errors import ConfigError

LOCAL = "local"
_FORM = "write CACHE,NAME=VALUE, as in local,size=1048576"


class CacheSettings(NamedTuple):
    """The kind of a server's response cache, and its settings."""

    kind: str
    size: int  # bytes


def parse_cache_settings(arguments: Sequence[str], byte_size: int | None) -> CacheSettings | None:
    """Parse the values of `--cache-config` and of `--response-cache-byte-size`, the older flag.

    Return None without either, and for a size of 0 in the older flag. Raises ConfigError for a malformed
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
        return CacheSettings(LOCAL, byte_size) if byte_size else None
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
    if kind != LOCAL:
        raise ConfigError(f"--cache-config={kind}: there is no such cache, only {LOCAL}; {_FORM}")
    if unknown := sorted(values.keys() - {"size"}):
        raise ConfigError(f"--cache-config={kind},{unknown[0]}: the cache {kind} has the setting size alone")
    size = values.get("size", "")
    if not size.isdecimal() or not int(size):
        raise ConfigError(f"--cache-config={kind},size={size}: the size is a number of bytes from 1 on")
    return CacheSettings(kind, int(size))
