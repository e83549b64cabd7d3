"""Override: configuration and files that a client sends with a load, in place of the model's folder."""

from __future__ import annotations

import base64
import binascii
import os
import shutil
import tempfile
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf import json_format

from client.protos.kserve_v2_pb2 import ModelConfig
from pipeline.errors import ConfigError
from pipeline.process.folders import make_held, remove_leftovers
from pipeline.triton.repository import ModelRepository, check_name

FILE = "file:"
_PREFIX = "paddlewheel-models-"


@dataclass(frozen=True)
class Override:
    """Configuration and files of a model, as sent with its load."""

    name: str  # of the model
    config: ModelConfig | None = None  # replaces config.pbtxt
    files: Mapping[str, bytes] = field(
        default_factory=dict
    )  # contents by path; if any, replace the whole folder

    def apply_to(self, source: ModelRepository, work: Path) -> ModelRepository:
        """Return the repository with this override. Its files, if any, are written below `work`.

        Raises ConfigError for a file that can't be written.
        """
        folder = None
        if self.files:
            folder = work / self.name
            for path, content in self.files.items():
                file = folder / path
                try:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(content)
                except OSError as exc:
                    raise ConfigError(f"'{FILE}{path[:100]}' can't be written: {exc.strerror}") from exc
        return replace(source, overrides={self.name: (folder, self.config)})


class OverrideFolders:
    """Folders with files that clients have sent, one for each load.

    They are in a temporary folder that is removed when the server stops. A starting server removes the
    folders of killed servers.
    """

    def __init__(self) -> None:
        remove_leftovers(Path(tempfile.gettempdir()), f"{_PREFIX}*")
        self._path, self._lock = make_held(lambda: tempfile.mkdtemp(prefix=_PREFIX))
        weakref.finalize(self, _remove_folder, self._path, self._lock)
        self._loading: set[Path] = set()

    def make_folder(self) -> Path:
        """Return a new folder for a load, which calls `release` at its end."""
        folder = Path(tempfile.mkdtemp(dir=self._path))
        self._loading.add(folder)
        return folder

    def release(self, folder: Path) -> None:
        self._loading.discard(folder)

    def remove_all_but(self, used: Collection[Path]) -> None:
        """Remove the folders that neither a loaded model nor a load uses. Any thread may call it."""
        for folder in set(self._path.iterdir()).difference(used, self._loading):
            shutil.rmtree(folder, ignore_errors=True)


def _remove_folder(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def parse_override(name: str, parameters: Mapping[str, Any]) -> Override | None:
    """Parse the parameters of a load: "config", and file names that begin with `FILE`.

    None without parameters. Raises ConfigError.
    """
    config: ModelConfig | None = None
    files: dict[str, bytes] = {}
    for parameter, value in parameters.items():
        if parameter == "config":
            config = _parse_config_parameter(value)
        else:
            files[_parse_file_path(parameter)] = _decode_content(parameter, value)
    if files and config is None:
        raise ConfigError(f"failed to load '{name}', override files need the parameter 'config', too")
    if config is None:
        return None
    check_name(name)  # the name becomes a folder's name
    return Override(name, config, files)


def _parse_config_parameter(value: str) -> ModelConfig:
    try:
        return json_format.Parse(value, ModelConfig())
    except json_format.ParseError as exc:
        raise ConfigError(f"parameter 'config' is no configuration of a model: {exc}") from None


def _parse_file_path(parameter: str) -> str:
    """Return the path within the model's folder. Raises ConfigError for a path that leads out of it."""
    path = PurePosixPath(parameter.removeprefix(FILE))
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in str(path):
        raise ConfigError(f"'{parameter[:100]}' leads out of the model's folder: give a path within it")
    return str(path)


def _decode_content(parameter: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise ConfigError(f"the content of '{parameter[:100]}' is no base64 text") from None
