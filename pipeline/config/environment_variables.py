"""Environment variables in the values of config.yml: `${NAME}` and `${NAME:-default}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

_REFERENCE = re.compile(
    r"\$\$\{"  # a literal `${`
    r"|\$\{(?:(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\})?",
    re.ASCII,
)


class _InvalidReference(Exception):
    pass


def replace_variables(root: yaml.Node, loader: Any, environment: Mapping[str, str]) -> list[str]:
    """Replace the references in all values below `root`, and return an error for each invalid reference.

    An unquoted value gets its YAML type after the replacement: `http_port: ${PORT}` is an integer.
    """
    errors: list[str] = []
    visited: set[int] = set()  # an alias shares the node of its anchor
    pending: list[tuple[str, yaml.Node]] = [("", root)]
    while pending:
        path, node = pending.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        if isinstance(node, yaml.MappingNode):
            below = [(str(key.value), value) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            below = [(str(index), value) for index, value in enumerate(node.value)]
        else:
            below = []
            assert isinstance(node, yaml.ScalarNode)
            try:
                _replace_scalar(node, loader, environment)
            except _InvalidReference as exc:
                errors.append(f"line {node.start_mark.line + 1}: {path}: {exc}")
        pending += [(f"{path}.{name}" if path else name, value) for name, value in reversed(below)]
    return errors


def _replace_scalar(node: yaml.ScalarNode, loader: Any, environment: Mapping[str, str]) -> None:
    if "${" not in node.value:
        return

    def look_up(reference: re.Match[str]) -> str:
        if reference[0] == "$${":
            return "${"
        name, default = reference["name"], reference["default"]
        if name is None:
            raise _InvalidReference(
                f"{node.value[:60]!r} given; write ${{NAME}} or ${{NAME:-default}}; $${{ stands for ${{"
            )
        value = environment.get(name)
        if default is not None:
            return value or default
        if value is None:
            raise _InvalidReference(
                f"environment variable {name} is not set; set it, or write ${{{name}:-default}}"
            )
        return value

    node.value = _REFERENCE.sub(look_up, node.value)
    if node.style is None:  # unquoted
        node.tag = loader.resolve(yaml.ScalarNode, node.value, (True, False))
