"""Plugins: the engines and dialects that there are, found by Python entry points.

A package adds one with a line in its pyproject.toml, as this project does for its own:

    [project.entry-points."paddlewheel.engines"]
    numpy = "my_package.numpy_engine:ENGINE"

Its name there is the one that config.yml and the log use.
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

_SEAMS = {  # what an object of the group has to have, and the file that says more
    DIALECTS: (("front", "worker"), "pipeline/dialects/dialect.py"),
    ENGINES: (("format_of", "params_of", "signature_of", "load"), "pipeline/engines/base.py"),
}
PROJECT = "paddlewheel"
_CHECKOUT = Path(__file__).resolve().parents[1] / "pyproject.toml"

T = TypeVar("T")


class Plugin(NamedTuple):
    """An entry point of a group. value: where it is, as `module:object`, in this distribution."""

    group: str
    name: str
    value: str
    distribution: str

    @property
    def kind(self) -> str:
        return self.group.rpartition(".")[2].removesuffix("s")


class Library(NamedTuple):
    """What a plugin imports and its package does not require: an extra of it.

    module: its import name. requirement: what pip installs it with.
    """

    module: str
    requirement: str

    @property
    def is_installed(self) -> bool:
        """As far as its files tell; it is not imported."""
        if self.module in sys.modules:
            return True
        spec = importlib.util.find_spec(self.module)
        return spec is not None and spec.origin is not None  # None: a folder of that name beside the script


@cache
def find(group: str) -> Mapping[str, Plugin]:
    """Those of a group by their names. Raises ConfigError for two of one name, and where there is none.

    Of this project itself the table in pyproject.toml counts where that file lies beside the package: what
    pip has noted of a checkout is as old as its installation, and of a bare clone there is nothing.
    """
    own = _of_checkout(group)
    found = [*own, *(one for one in _installed(group) if not own or one.distribution != PROJECT)]
    by_name: dict[str, Plugin] = {}
    for one in found:
        other = by_name.setdefault(one.name, one)
        if other != one:
            raise ConfigError(
                f"there are two {one.kind}s with the name {one.name!r}: {other.value} of "
                f"{other.distribution} and {one.value} of {one.distribution}; uninstall one of the two"
            )
    if not by_name:
        raise ConfigError(f"{PROJECT} is not installed: the entry points {group} are missing; install it")
    return {name: by_name[name] for name in sorted(by_name)}


@cache
def load(plugin: Plugin) -> Any:
    """The object. Raises ConfigError for one that can't be imported, or that is not of this kind."""
    methods, described = _SEAMS[plugin.group]
    module, _, attribute = plugin.value.partition(":")
    loaded = called(plugin, lambda: getattr(importlib.import_module(module), attribute))
    named = getattr(loaded, "name", None) == plugin.name
    if not named or not all(callable(getattr(loaded, method, None)) for method in methods):
        raise ConfigError(
            f"{plugin.value} of {plugin.distribution} is no {plugin.kind} {plugin.name!r}: it needs that "
            f"name, and the methods {' and '.join(methods)}; see {described}"
        )
    return loaded


def called(plugin: Plugin, part: Callable[..., T], *given: Any) -> T:
    """What a function of the plugin returns. Raises ConfigError that names the plugin, if that raises."""
    try:
        return part(*given)
    except ServingError:
        raise
    except Exception as exc:
        raise ConfigError(
            f"{plugin.kind} {plugin.name} ({plugin.value}) of {plugin.distribution} can't be loaded: "
            f"{type(exc).__name__}: {get_error_text(exc)}; mend or uninstall {plugin.distribution}"
        ) from exc


def _installed(group: str) -> Iterator[Plugin]:
    for entry in entry_points(group=group):
        distribution = entry.dist.name if entry.dist else "an unknown distribution"
        yield Plugin(group, entry.name, entry.value, distribution)


def _of_checkout(group: str) -> list[Plugin]:
    try:
        project = tomllib.loads(_CHECKOUT.read_text("utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return []
    if project.get("name") != PROJECT:  # of an app that has this package in its own folder
        return []
    table = project["entry-points"][group]
    return [Plugin(group, name, value, PROJECT) for name, value in table.items()]
