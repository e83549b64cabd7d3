"""Repository agents: `checksum` compares a model's files with the digests that its configuration names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from client.protos.kserve_v2_pb2 import ModelConfig

CHECKSUM = "checksum"


def find_agent_error(config: ModelConfig, folder: Path) -> str:
    """Return why the model's agents refuse its load; empty where they do not.

    An unknown agent is an error: it may protect what this server would then load unprotected.
    """
    for agent in config.model_repository_agents.agents:
        if agent.name != CHECKSUM:
            return (
                f"model_repository_agents: there is no agent '{agent.name}' here, only '{CHECKSUM}'; remove "
                f"it from the configuration of {config.name}"
            )
        for key, expected in sorted(agent.parameters.items()):
            if error := _find_checksum_error(key, expected, folder):
                return error
    return ""


def _find_checksum_error(key: str, expected: str, folder: Path) -> str:
    algorithm, colon, name = key.partition(":")
    if not colon:
        return f"failed to parse key: {key}; write MD5:FILE"
    if algorithm.lower() != "md5":
        return f"Unsupported checksum algorithm: {algorithm}"
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        # A client may send the configuration: the digest of another file is not to be found out by it.
        return f"checksum of '{name}': the path leads out of the model's folder"
    digest = hashlib.md5(usedforsecurity=False)  # the only algorithm of Triton's agent
    try:
        for block in _read_blocks(folder / path):
            digest.update(block)
    except OSError as exc:
        return f"failed to open file for read {name}: {exc.strerror}"
    if digest.hexdigest() != expected:
        return f"Mismatched MD5 hash for file {name}, expect: {expected}, got: {digest.hexdigest()}"
    return ""


def _read_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            yield block
