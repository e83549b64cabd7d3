"""Configuration and files that a client sends in a request to load a model, instead of those on disk.

The request is RepositoryModelLoad of Triton's model control API, with `config` and `file:PATH` parameters.
"""

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
from pipeline.triton.config_file import FILE as CONFIG_FILE
from pipeline.triton.config_file import read_config
from pipeline.triton.repository import ModelRepository, check_name

FILE = "file:"
_PREFIX = "paddlewheel-models-"


@dataclass(frozen=True)
class Override:
    """Configuration and files of a model from a client's load request, which replace those on disk."""

    name: str  # of the model
    config: ModelConfig | None = None  # replaces config.pbtxt
    files: Mapping[str, bytes] = field(
        default_factory=dict
    )  # contents by path; if any, replace the whole folder

    def apply_to(self, source: ModelRepository, work: Path) -> ModelRepository:
        """Return a copy of the repository that reads this model from the override.

        Files of the override, if any, are written below the folder `work`. Raises ConfigError for a file that
        can't be written.
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
        return replace(source, overrides={**source.overrides, self.name: (folder, self.config)})


def find_model_folder(path: Path) -> Path:
    """Return a model's folder: the path itself, or the only model folder in it.

    Raises ConfigError if the path is neither.
    """
    if not path.is_absolute() or not path.is_dir():
        raise ConfigError(f"{str(path)[:200]!r} is not the absolute path of a folder")
    if _is_model_folder(path):
        return path
    folders = [folder for folder in path.iterdir() if folder.is_dir() and _is_model_folder(folder)]
    if len(folders) != 1:
        raise ConfigError(f"{str(path)[:200]!r} holds {len(folders)} model folders; name the folder of one")
    return folders[0]


def _is_model_folder(path: Path) -> bool:
    return (path / CONFIG_FILE).is_file() or any(
        entry.name.isdecimal() and entry.is_dir() for entry in path.iterdir()
    )


def read_renamed_config(folder: Path) -> ModelConfig:
    """Parse the config.pbtxt in a model folder, ignoring the name in the file. Raises ConfigError."""
    config = read_config(folder)
    config.name = ""
    return config


class OverrideFolders:
    """Temporary folders for model files that clients send with load requests, one folder for each load.

    Their parent folder is removed when the server stops. A starting server removes the folders of killed
    servers.
    """

    def __init__(self) -> None:
        remove_leftovers(Path(tempfile.gettempdir()), f"{_PREFIX}*")
        self._path, self._lock = make_held(lambda: tempfile.mkdtemp(prefix=_PREFIX))
        weakref.finalize(self, _remove_folder, self._path, self._lock)
        self._loading: set[Path] = set()

    def make_folder(self) -> Path:
        """Create a folder for one load request, and return its path.

        Call `release` when the load has ended.
        """
        folder = Path(tempfile.mkdtemp(dir=self._path))
        self._loading.add(folder)
        return folder

    def release(self, folder: Path) -> None:
        """Mark the load that uses a folder as ended: `remove_all_but` may remove the folder from now on."""
        self._loading.discard(folder)

    def remove_all_but(self, used: Collection[Path]) -> None:
        """Remove all folders except those of loads in progress and those in `used`.

        Any thread may call it.
        """
        for folder in set(self._path.iterdir()).difference(used, self._loading):
            shutil.rmtree(folder, ignore_errors=True)


def _remove_folder(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def parse_override(name: str, parameters: Mapping[str, Any]) -> Override | None:
    """Parse the parameters of a client's load request: "config" (JSON), and "file:PATH" with file contents.

    name: the model's name. Returns None without parameters. Raises ConfigError for invalid parameters.
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
    """Return the relative path in a parameter "file:PATH". As in Triton, a leading slash has no meaning.

    Raises ConfigError for a path that leads out of the model's folder.
    """
    path = PurePosixPath(parameter.removeprefix(FILE).lstrip("/"))
    if ".." in path.parts or not path.parts or "\0" in str(path):
        raise ConfigError(f"'{parameter[:100]}' leads out of the model's folder: give a path within it")
    return str(path)


def _decode_content(parameter: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise ConfigError(f"the content of '{parameter[:100]}' is no base64 text") from None
