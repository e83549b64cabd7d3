"""Reader of the API key file named by `security.api_keys`: client names, key digests and limits.

Each line holds a key: `NAME:KEY`, or `NAME:sha256:DIGEST` with the key's SHA-256 in hexadecimal digits.
`pending=N` and `rate=N` behind the key override the limits of config.yml for that name. Empty lines and lines
that begin with # are ignored. A client may have several lines, to replace its key without a gap.
"""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path
from typing import NamedTuple

from pipeline.config.config_file import SecurityConfig
from pipeline.errors import ConfigError
from pipeline.text_lines import split_lines

MAX_BYTES = 1 << 20
MIN_KEY_CHARS = 16
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_KEY = re.compile(rf"[!-~]{{{MIN_KEY_CHARS},512}}")


class ApiKey(NamedTuple):
    """A client's API key, stored as its SHA-256 digest, with the client's name and limits."""

    name: str  # of the client
    digest: bytes  # SHA-256 of the key
    pending: int  # requests of this name that may be pending; 0: no limit
    rate: float  # requests per second of this name; 0: no limit


def hash_key(key: bytes) -> bytes:
    """Return the SHA-256 digest of an API key, the form in which keys are stored and compared."""
    return hashlib.sha256(key).digest()


def read_api_keys(security: SecurityConfig) -> list[ApiKey]:
    """Return the keys in the API key file. Raises ConfigError that lists invalid lines by number only.

    The error never contains a key.
    """
    path = Path(str(security.api_keys))
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as exc:
        raise ConfigError(f"security.api_keys: {path} can't be read ({exc.strerror})") from exc
    except UnicodeDecodeError:
        raise ConfigError(f"security.api_keys: {path} is no text") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"security.api_keys: {path} is over {MAX_BYTES} bytes")
    keys: dict[bytes, ApiKey] = {}
    flaws = []
    for number, line in enumerate(split_lines(text), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            key = _parse_key_line(line.split(), security)
            if keys.setdefault(key.digest, key) is not key:
                raise ValueError("the key of a line above")
        except ValueError as exc:
            flaws.append(f"security.api_keys: {path}, line {number}: {exc}")
    if not keys and not flaws:
        flaws = [f"security.api_keys: {path} holds no key; nobody could ask"]
    if flaws:
        raise ConfigError("\n".join(flaws))
    return list(keys.values())


def check_api_keys(security: SecurityConfig) -> list[str]:
    """Return error messages for the API key file; empty if the file is valid."""
    try:
        read_api_keys(security)
    except ConfigError as exc:
        return [exc.message]
    return []


def is_readable_by_others(path: str) -> bool:
    """Whether the file's mode gives any permission to the group or to other users."""
    return bool(Path(path).stat().st_mode & 0o077)


def _parse_key_line(words: list[str], security: SecurityConfig) -> ApiKey:
    name, colon, key = words[0].partition(":")
    if not colon or not _NAME.fullmatch(name):
        raise ValueError("no name of letters, digits, '_', '.' and '-' before a ':'; write NAME:KEY")
    if key.startswith("sha256:"):
        key = key.removeprefix("sha256:")
        if not _DIGEST.fullmatch(key):
            raise ValueError("no SHA-256 of 64 hexadecimal digits behind 'sha256:'")
        digest = bytes.fromhex(key)
    elif not _KEY.fullmatch(key):
        raise ValueError(
            f"a key has at least {MIN_KEY_CHARS} ASCII characters; make one: openssl rand -hex 32"
        )
    else:
        digest = hash_key(key.encode())
    limits = {"pending": float(security.key_pending), "rate": security.key_rate}
    for word in words[1:]:
        limit, _, value = word.partition("=")
        if limit not in limits:
            raise ValueError("behind the key there is neither pending=N nor rate=N")
        limits[limit] = _parse_limit(value)
    return ApiKey(name, digest, int(limits["pending"]), limits["rate"])


def _parse_limit(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError("a limit is no number of 0 or more")
    return number
