"""Versions of a model: a directory with 1/, 2/, ... in it, each a serving model directory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import ConfigError
from pipeline.models.serving_model import is_serving_model

UNVERSIONED = "1"  # what a model without versions is called by


class ChosenVersion(NamedTuple):
    """The version of a model that is to be served."""

    directory: Path  # of the serving model, without symbolic links, so that it stays the same
    version: str


def choose_version(directory: Path, wanted: int | None = None) -> ChosenVersion:
    """The version that is to be served: the one wanted, or the highest. Raises ConfigError.

    A directory that is a serving model itself has no others.
    """
    directory = directory.resolve()
    if is_serving_model(directory):
        if wanted is not None:
            raise ConfigError(
                f"{directory} is a serving model without versions: remove model_version {wanted}, or move "
                f"the model to {directory / str(wanted)}"
            )
        return ChosenVersion(directory, UNVERSIONED)
    versions = _versions_in(directory)
    if wanted is not None and wanted not in versions:
        there = ", ".join(map(str, versions)) or "none"
        raise ConfigError(f"{directory} has no version {wanted}, model_version asks for it; there: {there}")
    if not versions:
        return ChosenVersion(directory, UNVERSIONED)  # loading it tells what is missing
    version = str(wanted or versions[-1])
    return ChosenVersion(directory / version, version)


def _versions_in(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    names = (path.name for path in directory.iterdir() if path.is_dir())
    return sorted(int(name) for name in names if re.fullmatch(r"[1-9]\d{0,17}", name))
