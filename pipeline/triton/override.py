"""Override: a model's configuration and files as a client that loads it gives them."""

from __future__ import annotations

import base64
import binascii
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf import json_format

from client.protos.kserve_v2_pb2 import ModelConfig
from pipeline.errors import ConfigError
from pipeline.triton.repository import ModelRepository, check_name

FILE = "file:"


@dataclass(frozen=True)
class Override:
    """name: of the model. config: in place of config.pbtxt. files: their contents by path; with any, they
    are all that the model's folder holds."""

    name: str
    config: ModelConfig | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    def over(self, source: ModelRepository, work: Path) -> ModelRepository:
        """The repository with this model as given. Its files are written to a new folder in `work`.

        Raises ConfigError for names of which no files can be made.
        """
        folder = None
        if self.files:
            folder = Path(tempfile.mkdtemp(dir=work)) / self.name
            for path, content in self.files.items():
                file = folder / path
                try:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(content)
                except OSError as exc:
                    raise ConfigError(f"'{FILE}{path[:100]}' can't be written: {exc.strerror}") from exc
        return replace(source, given={self.name: (folder, self.config)})


def override_of(name: str, parameters: Mapping[str, Any]) -> Override | None:
    """What the parameters of a load say, "config" and those that begin with `FILE`; None for nothing.

    Raises ConfigError.
    """
    config: ModelConfig | None = None
    files: dict[str, bytes] = {}
    for parameter, value in parameters.items():
        if parameter == "config":
            config = _config(value)
        else:
            files[_path(parameter)] = _content(parameter, value)
    if files and config is None:
        raise ConfigError(f"failed to load '{name}', override files need the parameter 'config', too")
    if config is None:
        return None
    check_name(name)  # it becomes that of a folder
    return Override(name, config, files)


def _config(value: str) -> ModelConfig:
    try:
        return json_format.Parse(value, ModelConfig())
    except json_format.ParseError as exc:
        raise ConfigError(f"parameter 'config' is no configuration of a model: {exc}") from None


def _path(parameter: str) -> str:
    """The path within the model's folder. Raises ConfigError for one that leads out of it."""
    path = PurePosixPath(parameter.removeprefix(FILE))
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in str(path):
        raise ConfigError(f"'{parameter[:100]}' leads out of the model's folder: give a path within it")
    return str(path)


def _content(parameter: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise ConfigError(f"the content of '{parameter[:100]}' is no base64 text") from None
