"""The file of `security.api_keys`: who may ask, each by the digest of a key.

A line for each key, `NAME:KEY` or `NAME:sha256:DIGEST` with the SHA-256 of the key in hexadecimal digits;
behind it `pending=N` and `rate=N` where that name's limits differ from those of config.yml. Empty lines and
those that begin with # don't count. Lines of one name are keys of one client: a new one beside the old.
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

MOST_BYTES = 1 << 20
LEAST_CHARACTERS = 16
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_KEY = re.compile(rf"[!-~]{{{LEAST_CHARACTERS},512}}")


class ApiKey(NamedTuple):
    """pending: requests of that name admitted at a time, rate: its requests a second; 0: no limit."""

    name: str
    digest: bytes
    pending: int
    rate: float


def hash_key(key: bytes) -> bytes:
    """What a key is known by."""
    return hashlib.sha256(key).digest()


def read_api_keys(security: SecurityConfig) -> list[ApiKey]:
    """Raises ConfigError that names each bad line by its number, never by what it holds."""
    path = Path(str(security.api_keys))
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as exc:
        raise ConfigError(f"security.api_keys: {path} can't be read ({exc.strerror})") from exc
    except UnicodeDecodeError:
        raise ConfigError(f"security.api_keys: {path} is no text") from None
    if len(data) > MOST_BYTES:
        raise ConfigError(f"security.api_keys: {path} is over {MOST_BYTES} bytes")
    keys: dict[bytes, ApiKey] = {}
    flaws = []
    for number, line in enumerate(split_lines(text), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            key = _parsed(line.split(), security)
            if keys.setdefault(key.digest, key) is not key:
                raise ValueError("the key of a line above")
        except ValueError as exc:
            flaws.append(f"security.api_keys: {path}, line {number}: {exc}")
    if not keys and not flaws:
        flaws = [f"security.api_keys: {path} holds no key; nobody could ask"]
    if flaws:
        raise ConfigError("\n".join(flaws))
    return list(keys.values())


def flaws_of_keys(security: SecurityConfig) -> list[str]:
    """What is wrong with the file, for the list of all mistakes at the start."""
    try:
        read_api_keys(security)
    except ConfigError as exc:
        return [exc.message]
    return []


def open_to_others(path: str) -> bool:
    """Whether other users of the machine can read the file."""
    return bool(Path(path).stat().st_mode & 0o077)


def _parsed(words: list[str], security: SecurityConfig) -> ApiKey:
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
            f"a key has at least {LEAST_CHARACTERS} ASCII characters; make one: openssl rand -hex 32"
        )
    else:
        digest = hash_key(key.encode())
    limits = {"pending": float(security.key_pending), "rate": security.key_rate}
    for word in words[1:]:
        what, _, value = word.partition("=")
        if what not in limits:
            raise ValueError("behind the key there is neither pending=N nor rate=N")
        limits[what] = _limit(value)
    return ApiKey(name, digest, int(limits["pending"]), limits["rate"])


def _limit(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError("a limit is no number of 0 or more")
    return number
