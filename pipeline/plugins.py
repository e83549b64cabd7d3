"""Plugins: inference engines and dialects (client protocols), discovered by Python entry points.

A package registers a plugin in its pyproject.toml::

    [project.entry-points."paddlewheel.engines"]
    numpy = "my_package.numpy_engine:ENGINE"

config.yml and the log use the name of the entry point.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pipeline.errors import ConfigError, ServingError, get_error_text

DIALECTS, ENGINES = "paddlewheel.dialects", "paddlewheel.engines"

_INTERFACES = {  # required methods of a plugin, and the file that documents them
    DIALECTS: (("front", "worker"), "pipeline/dialects/dialect.py"),
    ENGINES: (("format_of", "params_of", "signature_of", "load"), "pipeline/engines/base.py"),
}
PROJECT = "paddlewheel"
_CHECKOUT = Path(__file__).resolve().parents[1] / "pyproject.toml"

T = TypeVar("T")


class Plugin(NamedTuple):
    """The registration of a plugin: the entry point, not yet imported, of an engine or a dialect.

    A dialect is a client protocol.
    """

    group: str
    name: str
    value: str  # `module:object`
    distribution: str  # the package that registers it

    @property
    def kind(self) -> str:
        """The kind of plugin for messages: "engine" or "dialect"."""
        return self.group.rpartition(".")[2].removesuffix("s")


class Library(NamedTuple):
    """A Python library that a plugin needs and that may be missing, with the name to install by pip."""

    module: str  # import name
    requirement: str  # argument for pip install

    @property
    def is_installed(self) -> bool:
        """Whether the library's files are installed. The library is not imported."""
        if self.module in sys.modules:
            return True
        spec = importlib.util.find_spec(self.module)
        return spec is not None and spec.origin is not None  # None: a folder of that name beside the script


@cache
def find(group: str) -> Mapping[str, Plugin]:
    """Return the registered plugins of a group (DIALECTS or ENGINES) by name, without importing them.

    Raises ConfigError for duplicate names and for an empty group. In a checkout, this project's plugins are
    read from pyproject.toml, because the metadata of an editable install may be outdated, and a plain clone
    has none.
    """
    project_plugins = _read_checkout(group)
    plugins = [
        *project_plugins,
        *(p for p in _list_installed(group) if not project_plugins or p.distribution != PROJECT),
    ]
    by_name: dict[str, Plugin] = {}
    for plugin in plugins:
        other = by_name.setdefault(plugin.name, plugin)
        if other != plugin:
            raise ConfigError(
                f"there are two {plugin.kind}s with the name {plugin.name!r}: {other.value} of "
                f"{other.distribution} and {plugin.value} of {plugin.distribution}; uninstall one of the two"
            )
    if not by_name:
        raise ConfigError(f"{PROJECT} is not installed: the entry points {group} are missing; install it")
    return {name: by_name[name] for name in sorted(by_name)}


@cache
def load(plugin: Plugin) -> Any:
    """Import a plugin and return its object. Raises ConfigError for a failed import or missing methods."""
    methods, described = _INTERFACES[plugin.group]
    module, _, attribute = plugin.value.partition(":")
    loaded = call_plugin(plugin, lambda: getattr(importlib.import_module(module), attribute))
    named = getattr(loaded, "name", None) == plugin.name
    if not named or not all(callable(getattr(loaded, method, None)) for method in methods):
        raise ConfigError(
            f"{plugin.value} of {plugin.distribution} is no {plugin.kind} {plugin.name!r}: it needs that "
            f"name, and the methods {' and '.join(methods)}; see {described}"
        )
    return loaded


def call_plugin(plugin: Plugin, part: Callable[..., T], *arguments: Any) -> T:
    """Return `part(*arguments)`, a call of a plugin's code.

    Exceptions of the call become a ConfigError that names the plugin.
    """
    try:
        return part(*arguments)
    except ServingError:
        raise
    except Exception as exc:
        raise ConfigError(
            f"{plugin.kind} {plugin.name} ({plugin.value}) of {plugin.distribution} can't be loaded: "
            f"{type(exc).__name__}: {get_error_text(exc)}; mend or uninstall {plugin.distribution}"
        ) from exc


def _list_installed(group: str) -> Iterator[Plugin]:
    for entry in entry_points(group=group):
        distribution = entry.dist.name if entry.dist else "an unknown distribution"
        yield Plugin(group, entry.name, entry.value, distribution)


def _read_checkout(group: str) -> list[Plugin]:
    try:
        project = tomllib.loads(_CHECKOUT.read_text("utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return []
    if project.get("name") != PROJECT:  # the pyproject.toml of an app that vendors this package
        return []
    table = project["entry-points"][group]
    return [Plugin(group, name, value, PROJECT) for name, value in table.items()]
