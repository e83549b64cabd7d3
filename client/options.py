"""Command-line options that are declared once, as fields of a dataclass.

`argument`, `option` and `switch` declare a field, `add_options` adds the fields to a parser of argparse, and
`parse_options` builds the dataclass from the parsed values. The commands of `paddlewheel` use it, too.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

# Metadata of a field that is an option.
_FLAGS, _GROUP, _SECTION, _SETTINGS = "flags", "group", "section", "settings"
_CONVERTED = (Path, int, float)  # types of values that argparse converts


def argument(**settings: Any) -> Any:
    """Declare a positional command-line argument as a field of a dataclass.

    settings: keyword arguments of argparse's `add_argument`.
    """
    return dataclasses.field(metadata={_FLAGS: (), _GROUP: "", _SECTION: "", _SETTINGS: settings})


def option(*flags: str, default: Any = None, group: str = "", section: str = "", **settings: Any) -> Any:
    """Declare a command-line option as a field of a dataclass. Without `flags`, the flag is the field's name.

    The field's annotation determines the conversion: tuple[X, ...] is an option that may be repeated; Path,
    int and float are converted. settings: keyword arguments of argparse's `add_argument`, which override the
    inferred ones. group: name of a group of options that exclude each other. section: heading in --help.
    """
    metadata = {_FLAGS: flags, _GROUP: group, _SECTION: section, _SETTINGS: settings}
    return dataclasses.field(default=default, metadata=metadata)


def switch(**settings: Any) -> Any:
    """Declare a command-line flag (without a value, False by default) as a field of a dataclass.

    settings: keyword arguments of argparse's `add_argument`.
    """
    return option(default=False, action="store_true", **settings)


def add_options(parser: argparse.ArgumentParser, options: type, *, omit: Collection[str] = ()) -> None:
    """Add the arguments and options that a dataclass declares to a parser, in the order of the fields.

    omit: names of fields to leave out.
    """
    types = get_type_hints(options)
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for field in _list_fields(options):
        if field.name in omit:
            continue
        settings = _get_settings(field, types[field.name])
        group = field.metadata[_GROUP]
        if field.default is dataclasses.MISSING:
            parser.add_argument(field.name, **settings)
            continue
        required = bool(group) and settings.pop("required", False)
        if group and group not in groups:
            groups[group] = parser.add_mutually_exclusive_group(required=required)
        section = field.metadata[_SECTION]
        if section and section not in groups:
            groups[section] = parser.add_argument_group(section)
        groups[group or section].add_argument(*_get_flags(field), dest=field.name, **settings)


def parse_options(options: type[T], values: argparse.Namespace, **more: Any) -> T:
    """Build a dataclass of options from the namespace that argparse returned.

    Fields that are not in the namespace get their default. more: values of fields that are not options.
    """
    fields = {
        field.name: getattr(values, field.name)
        for field in _list_fields(options)
        if hasattr(values, field.name)
    }
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return options(**plain, **more)


def list_flags(options: type) -> list[str]:
    """Return the first flag, such as "--port", of each option that a dataclass declares."""
    return [flag for _, flag, _ in list_options(options)]


def list_options(options: type) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield field name, first flag and declared settings of each option that a dataclass declares."""
    for field in _list_fields(options):
        if field.default is not dataclasses.MISSING:
            yield field.name, _get_flags(field)[0], field.metadata[_SETTINGS]


def _get_flags(field: dataclasses.Field[Any]) -> tuple[str, ...]:
    return field.metadata[_FLAGS] or (f"--{field.name.replace('_', '-')}",)


def _list_fields(options: type) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(options) if _SETTINGS in field.metadata]


def _get_settings(field: dataclasses.Field[Any], kind: Any) -> dict[str, Any]:
    """Return the keyword arguments for argparse's `add_argument`.

    Declared settings override those inferred from the field's default and its type `kind`.
    """
    declared = field.metadata[_SETTINGS]
    inferred: dict[str, Any] = {}
    if field.default is not dataclasses.MISSING:
        inferred["default"] = field.default
    if "type" not in declared and "action" not in declared:
        value_type = next((part for part in (kind, *get_args(kind)) if part in _CONVERTED), None)
        inferred |= {} if value_type is None else {"type": value_type}
        inferred |= {"action": "append"} if get_origin(kind) is tuple and "nargs" not in declared else {}
    settings: dict[str, Any] = inferred | declared
    if settings.get("action") == "append":
        settings["default"] = list(settings["default"])  # argparse appends to a copy
    return settings
