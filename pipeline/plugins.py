"""Engines and dialects that installed packages bring, found by their entry points.

A package adds one with a line in its pyproject.toml:

    [project.entry-points."paddlewheel.engines"]
    numpy = "my_package.numpy_engine:NumpyEngine"

The name is the one that config.yml and the log use; the object is made once in each process that needs it,
without arguments. This project's own are listed here as well as in its metadata, so that a checkout that is
not installed has them, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any

from pipeline.errors import ConfigError, text_of

ENGINES = "paddlewheel.engines"

OWN: Mapping[str, Mapping[str, str]] = {
    ENGINES: {
        "paddle": "pipeline.engines.paddle.engine:PaddleEngine",
        "onnxruntime": "pipeline.engines.onnxruntime.engine:OnnxRuntimeEngine",
    },
}


@cache
def found(group: str) -> Mapping[str, metadata.EntryPoint]:
    """The entry points of a group by name, our own first. Raises ConfigError where two have one name."""
    by_name = {name: metadata.EntryPoint(name, value, group) for name, value in OWN[group].items()}
    for entry in sorted(metadata.entry_points(group=group), key=lambda entry: entry.name):
        known = by_name.setdefault(entry.name, entry)
        if known.value != entry.value:
            raise ConfigError(
                f"{_package(entry)} brings {entry.name!r} ({entry.value}) to {group}, and so does "
                f"{_package(known)} ({known.value}): uninstall one of them"
            )
    return by_name


@cache
def made(group: str) -> Mapping[str, Any]:
    """What the entry points of a group stand for, by name, each made once.

    Raises ConfigError for one that can't be imported or made: it names the package that brings it.
    """
    return {name: _made(entry) for name, entry in found(group).items()}


def _made(entry: metadata.EntryPoint) -> Any:
    try:
        return entry.load()()
    except Exception as exc:
        raise ConfigError(
            f"{_package(entry)} brings {entry.name!r} to {entry.group}, but {entry.value} can't be loaded "
            f"({type(exc).__name__}: {text_of(exc)}): mend or uninstall it"
        ) from exc


def _package(entry: metadata.EntryPoint) -> str:
    return "paddlewheel" if entry.dist is None else f"the package {entry.dist.name} {entry.dist.version}"
