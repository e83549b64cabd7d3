"""Checks and defaults of the section of a remote Op, whose model runs on other servers."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.config.op_section import OpConfig
from pipeline.config.value_types import ClientType
from pipeline.errors import ConfigError

MAX_TRY_MS = 600_000  # where neither op.<name>.timeout nor dag.request_timeout bounds a call
CHOICE = (
    "pipeline_grpc for another Pipeline service, grpc for a KServe v2 service (Triton, say); or remove "
    "server_endpoints and run the model here, with local_service_conf"
)


def find_remote_errors(name: str, section: OpConfig, default: ClientType | None) -> list[str]:
    """Return the errors of a section, a sentence each. `default` is dag.client_type."""
    if not section.server_endpoints:
        remote = {
            "model_name": "it names a remote model",
            "server_api_key_file": "its key is for server_endpoints",
        }
        present = [key for key in remote if getattr(section, key)]
        return [f"op.{name}.{key}: {remote[key]}; give server_endpoints, or remove it" for key in present]
    client_type = section.client_type or default
    match client_type:
        case "grpc":
            return []
        case "pipeline_grpc" if section.model_name:
            return [f"op.{name}.model_name: a Pipeline service has no models to choose from; remove it"]
        case "pipeline_grpc":
            return []
        case "brpc":
            key = f"op.{name}.client_type" if section.client_type else "dag.client_type"
            return [f"{key}: 'brpc' given; there is no brpc client for this Python. Choose {CHOICE}"]
        case "local_predictor":
            return [f"op.{name}.client_type: 'local_predictor' given, with server_endpoints. Choose {CHOICE}"]
        case None:
            return [
                f"op.{name}.client_type: missing; what do the server_endpoints speak? Paddle Serving took "
                f"brpc, for which this Python has no client. Choose {CHOICE}"
            ]


def complete_section(
    name: str, section: OpConfig, default: ClientType | None, request_timeout_s: float
) -> OpConfig:
    """Fill in the defaults of a valid remote section. Other sections are returned unchanged."""
    if not section.server_endpoints:
        return section
    client_type = section.client_type or default
    return section.model_copy(
        update={
            "client_type": client_type,
            "model_name": section.model_name or (name if client_type == "grpc" else ""),
            "timeout": section.timeout
            if section.timeout > 0
            else int(request_timeout_s * 1000) or MAX_TRY_MS,
            "local_service_conf": None,  # as in Paddle Serving, endpoints win over it
        }
    )


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
