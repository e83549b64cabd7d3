"""`nodes` of config.yml: other machines that run the workers, and the secret that front and agents share."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from pipeline.config.value_types import Seconds, Section
from pipeline.errors import ConfigError

MIN_TOKEN_CHARS, MAX_TOKEN_BYTES = 16, 4096


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT; IPv6 addresses are in brackets. Raises ValueError."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is no address such as 10.0.0.2:7071")
    return host, int(port)


def _check_address(address: str) -> str:
    try:
        _, port = split_address(address)
    except ValueError:
        port = 0
    if not port:
        raise PydanticCustomError("agent", "Input should be an address such as 10.0.0.2:7071")
    return address


class NodesConfig(Section):
    """`nodes`: agents on other machines, which run the workers of all Ops."""

    agents: Annotated[list[Annotated[str, AfterValidator(_check_address)]], Field(min_length=1)] = Field(
        description="Addresses of `paddlewheel agent`, HOST:PORT, one a machine; they share the workers."
    )
    token_file: str = Field(description="File of the secret shared with the agents, 16 characters at least.")
    ca_file: str | None = Field(
        default=None,
        description="PEM file of the authorities of the agents' certificates; absent: no encryption.",
    )
    timeout: Annotated[Seconds, Field(gt=0)] = Field(
        default=5.0,
        description="Seconds without a byte on a connection, after which the machine is lost and others run "
        "its requests.",
    )

    def files(self) -> dict[str, str]:
        """Return the paths of files named in the section `nodes`, by key. Absent keys are left out."""
        return self.model_dump(include={"token_file", "ca_file"}, exclude_none=True)


def read_token(path: Path) -> bytes:
    """Return the secret in a token file, without blanks at its ends.

    Raises ConfigError for an unusable file.
    """
    try:
        with path.open("rb") as file:
            token = file.read(MAX_TOKEN_BYTES + 1).strip()
    except OSError as exc:
        raise ConfigError(f"token file {path} can't be read ({exc.strerror})") from exc
    if not MIN_TOKEN_CHARS <= len(token) <= MAX_TOKEN_BYTES:
        raise ConfigError(
            f"token file {path} holds {len(token)} bytes, {MIN_TOKEN_CHARS} to {MAX_TOKEN_BYTES} are needed, "
            "e.g. of `openssl rand -hex 32`"
        )
    return token


def check_nodes(nodes: NodesConfig) -> list[str]:
    """Return an error message for each file in the section `nodes` that can't be used."""
    flaws = []
    try:
        read_token(Path(nodes.token_file))
    except ConfigError as exc:
        flaws.append(f"nodes.token_file: {exc.message}")
    if nodes.ca_file is not None:
        try:
            ssl.create_default_context(cafile=nodes.ca_file)
        except OSError as exc:  # ssl.SSLError is one
            flaws.append(f"nodes.ca_file: {nodes.ca_file} can't be used ({exc.strerror or exc})")
    return flaws
