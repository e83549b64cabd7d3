"""The API key that a remote Op sends to its `server_endpoints`, read from a file."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.errors import ConfigError

MAX_BYTES = 4096
_KEY = re.compile(rb"[!-~]+")

Metadata = tuple[tuple[str, str], ...]


class RemoteKey:
    """The `metadata` of each call with the API key; empty without a key file."""

    def __init__(self, path: str) -> None:
        """Read the key file. Raises ConfigError."""
        self._path = path
        self.metadata: Metadata = _build_metadata(path)

    def reload(self, refused: Metadata) -> bool:
        """Read the file again, and return whether its key differs from the refused one."""
        try:
            self.metadata = _build_metadata(self._path)
        except ConfigError:  # the file is just being written
            return False
        return self.metadata != refused


def check_remote_key(op: str, path: str) -> list[str]:
    """Return the errors of the key file, for the list of all mistakes at start-up."""
    try:
        read_remote_key(path)
    except ConfigError as exc:
        return [f"op.{op}.{exc.message}"]
    return []


def _build_metadata(path: str) -> Metadata:
    return (("authorization", f"Bearer {read_remote_key(path)}"),) if path else ()


def read_remote_key(path: str) -> str:
    """Return the key in the file. Raises ConfigError, whose message never quotes the file."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1).strip()
    except OSError as exc:
        raise ConfigError(f"server_api_key_file: {path} can't be read ({exc.strerror})") from exc
    if len(data) > MAX_BYTES or not _KEY.fullmatch(data):
        raise ConfigError(
            f"server_api_key_file: {path} has to hold the key and nothing else, of printable ASCII characters"
        )
    return data.decode()
