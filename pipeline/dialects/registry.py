"""The dialects of a service: loaded in the front and in workers, each its part.

The front alone looks for them; workers are told where they are, for reading the metadata of all installed
packages takes some 10 ms, and both must have the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pipeline.dialects.dialect import Dialect, Form
from pipeline.errors import ConfigError
from pipeline.messages.values import will_read
from pipeline.plugins import Plugin, called, load


def load_dialects(plugins: Iterable[Plugin]) -> list[Dialect]:
    """Raises ConfigError for one that can't be imported, or that is no Dialect."""
    return [load(plugin) for plugin in plugins]


def load_forms(plugins: Sequence[Plugin]) -> dict[str, Form]:
    """Their forms of answers, for a worker. What they leave unread is read here from now on.

    Raises ConfigError as `load_dialects` does, and for a form that two of them have.
    """
    forms: dict[str, Form] = {}
    owners: dict[str, Plugin] = {}
    for plugin, dialect in zip(plugins, load_dialects(plugins), strict=True):
        part = called(plugin, dialect.worker)
        for name, form in part.forms.items():
            if name in forms:
                raise ConfigError(
                    f"dialect {plugin.name} of {plugin.distribution} has a form {name!r}, as has dialect "
                    f"{owners[name].name} of {owners[name].distribution}; uninstall one of the two"
                )
            forms[name], owners[name] = form, plugin
        will_read(part.unread)
    return forms
