"""Which dialects there are: found by Python entry points, the built-in ones like those of other packages.

The front alone looks for them; workers are told where they are, for reading the metadata of all installed
packages takes some 10 ms, and both must have the same ones.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pipeline.dialects.dialect import Dialect, Form
from pipeline.errors import ConfigError, ServingError
from pipeline.messages.values import will_read

GROUP = "paddlewheel.dialects"
_PROJECT = "paddlewheel"
_CHECKOUT = Path(__file__).resolve().parents[2] / "pyproject.toml"

T = TypeVar("T")


class Source(NamedTuple):
    """Where a dialect is: as `module:object`, in this distribution."""

    name: str
    value: str
    distribution: str


def find_dialects() -> list[Source]:
    """By their names. Raises ConfigError for two of one name, and where there is none.

    Of this project itself the table in pyproject.toml counts where that file lies beside the package: what
    pip has noted of a checkout is as old as its installation, and of a bare clone there is nothing.
    """
    own = _of_checkout()
    found = [*own, *(one for one in _installed() if not own or one.distribution != _PROJECT)]
    by_name: dict[str, Source] = {}
    for one in found:
        other = by_name.setdefault(one.name, one)
        if other != one:
            raise ConfigError(
                f"there are two dialects with the name {one.name!r}: {other.value} of {other.distribution} "
                f"and {one.value} of {one.distribution}; uninstall one of the two"
            )
    if not by_name:
        raise ConfigError(
            f"no dialect is installed: the entry points {GROUP} are missing; install {_PROJECT}"
        )
    return [by_name[name] for name in sorted(by_name)]


def load_dialects(sources: Iterable[Source]) -> list[Dialect]:
    """Raises ConfigError for one that can't be imported, or that is no Dialect."""
    return [_loaded(source) for source in sources]


def load_forms(sources: Sequence[Source]) -> dict[str, Form]:
    """Their forms of answers, for a worker. What they leave unread is read here from now on.

    Raises ConfigError as `load_dialects` does, and for a form that two of them have.
    """
    forms: dict[str, Form] = {}
    owners: dict[str, Source] = {}
    for source, dialect in zip(sources, load_dialects(sources), strict=True):
        part = called(source, dialect.worker)
        for name, form in part.forms.items():
            if name in forms:
                raise ConfigError(
                    f"dialect {source.name} of {source.distribution} has a form {name!r}, as has dialect "
                    f"{owners[name].name} of {owners[name].distribution}; uninstall one of the two"
                )
            forms[name], owners[name] = form, source
        will_read(part.unread)
    return forms


def called(source: Source, part: Callable[..., T], *given: Any) -> T:
    """What `front` or `worker` of a dialect returns. Raises ConfigError that names it, if that raises."""
    try:
        return part(*given)
    except ServingError:
        raise
    except Exception as exc:
        raise _broken(source, exc) from exc


def _installed() -> Iterator[Source]:
    for entry in entry_points(group=GROUP):
        yield Source(entry.name, entry.value, entry.dist.name if entry.dist else "an unknown distribution")


def _of_checkout() -> list[Source]:
    try:
        project = tomllib.loads(_CHECKOUT.read_text("utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return []
    if project.get("name") != _PROJECT:  # of an app that has this package in its own folder
        return []
    table = project["entry-points"][GROUP]
    return [Source(name, value, _PROJECT) for name, value in table.items()]


def _loaded(source: Source) -> Dialect:
    module, _, attribute = source.value.partition(":")
    try:
        dialect: Dialect = getattr(importlib.import_module(module), attribute)
    except Exception as exc:
        raise _broken(source, exc) from exc
    if getattr(dialect, "name", None) != source.name or not all(
        callable(getattr(dialect, part, None)) for part in ("front", "worker")
    ):
        raise ConfigError(
            f"{source.value} of {source.distribution} is no dialect {source.name!r}: it needs that name, and "
            "the methods front and worker; see pipeline/dialects/dialect.py"
        )
    return dialect


def _broken(source: Source, exc: Exception) -> ConfigError:
    return ConfigError(
        f"dialect {source.name} ({source.value}) of {source.distribution} can't be loaded: "
        f"{type(exc).__name__}: {exc}; mend or uninstall {source.distribution}"
    )
