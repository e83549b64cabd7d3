"""Restricted APIs (Triton's --http-restricted-api): APIs that require a header with a secret value."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pipeline.errors import ConfigError, RestrictedApi

HEALTH = "health"
METADATA = "metadata"
INFERENCE = "inference"
SHARED_MEMORY = "shared-memory"
MODEL_CONFIG = "model-config"
MODEL_REPOSITORY = "model-repository"
STATISTICS = "statistics"
TRACE = "trace"
LOGGING = "logging"
APIS = (
    HEALTH,
    METADATA,
    INFERENCE,
    SHARED_MEMORY,
    MODEL_CONFIG,
    MODEL_REPOSITORY,
    STATISTICS,
    TRACE,
    LOGGING,
)


class Restriction(NamedTuple):
    """A header, and its secret value, that requests to a restricted API must have."""

    api: str
    header: str  # in lower case
    value: str


class Restrictions(NamedTuple):
    """The restricted APIs of the HTTP port and of the gRPC port."""

    http: tuple[Restriction, ...] = ()
    grpc: tuple[Restriction, ...] = ()


NO_RESTRICTIONS = Restrictions()


def parse_restrictions(flag: str, groups: Iterable[str], prefix: str = "") -> tuple[Restriction, ...]:
    """Parse the values of the command-line option `flag`, each `API,API,...:KEY=VALUE`, into restrictions.

    `prefix` precedes the key in the header's name. Raises ConfigError for another form, for an unknown API,
    and for an API in two groups.
    """
    restrictions: dict[str, Restriction] = {}
    for group in groups:
        for restriction in _parse_group(flag, group, prefix):
            if restriction.api in restrictions:
                raise ConfigError(f"--{flag}: '{restriction.api}' can not be in more than one group")
            restrictions[restriction.api] = restriction
    return tuple(restrictions.values())


def _parse_group(flag: str, group: str, prefix: str) -> Iterator[Restriction]:
    apis, colon, pair = group.partition(":")
    key, equals, value = pair.partition("=")
    if not (apis and colon and key and equals and value):
        # The group holds a secret: no message repeats it.
        raise ConfigError(f"--{flag}: write API,API,...:KEY=VALUE, with a key and a value that are not empty")
    header = f"{prefix}{key}".lower()
    if not header.isascii() or not header.isprintable() or " " in header:
        raise ConfigError(f"--{flag}: the key is part of a header's name: use ASCII letters, digits and '-'")
    for api in apis.split(","):
        if api not in APIS:
            raise ConfigError(f"--{flag}: unknown API '{api}'; use {', '.join(APIS)}")
        yield Restriction(api, header, value)


class RestrictedApis:
    """Checks the secret header of requests to restricted APIs, for one protocol: HTTP or gRPC."""

    def __init__(self, restrictions: Iterable[Restriction], noun: str) -> None:
        """`noun` is Triton's word for an API in error messages of this protocol."""
        self._restrictions = {each.api: (each.header.encode(), each.value.encode()) for each in restrictions}
        self._noun = noun

    def check(self, api: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise RestrictedApi if the API requires a header that is missing or has another value.

        `headers` have names in lower case. If a header is repeated, the first counts.
        """
        restriction = self._restrictions.get(api)
        if restriction is None:
            return
        header, expected = restriction
        actual = next((value for name, value in headers if name == header), None)
        if actual is None or not hmac.compare_digest(actual, expected):
            raise RestrictedApi(f"This {self._noun} is restricted, expecting header '{header.decode()}'")
