"""The API key that a remote Op shows to its `server_endpoints`: in a file, no configuration tells it."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.errors import ConfigError

MOST_BYTES = 4096
_KEY = re.compile(rb"[!-~]+")

Metadata = tuple[tuple[str, str], ...]


class RemoteKey:
    """`metadata` goes with each call; empty where no file is named."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError."""
        self._path = path
        self.metadata: Metadata = _shown(path)

    def renewed(self, refused: Metadata) -> bool:
        """Whether the file holds another key by now than what was refused, which is shown from then on."""
        try:
            self.metadata = _shown(self._path)
        except ConfigError:  # somebody is writing it
            return False
        return self.metadata != refused


def flaws_of_remote_key(op: str, path: str) -> list[str]:
    """What is wrong with the file, for the list of all mistakes at the start."""
    try:
        read_remote_key(path)
    except ConfigError as exc:
        return [f"op.{op}.{exc.message}"]
    return []


def _shown(path: str) -> Metadata:
    return (("authorization", f"Bearer {read_remote_key(path)}"),) if path else ()


def read_remote_key(path: str) -> str:
    """The one word in the file. Raises ConfigError, which never tells what the file holds."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1).strip()
    except OSError as exc:
        raise ConfigError(f"server_api_key_file: {path} can't be read ({exc.strerror})") from exc
    if len(data) > MOST_BYTES or not _KEY.fullmatch(data):
        raise ConfigError(
            f"server_api_key_file: {path} has to hold the key and nothing else, of printable ASCII characters"
        )
    return data.decode()
