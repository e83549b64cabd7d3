"""Writes the settings of `paddlewheel tune` into config.yml, between marks, with CPU and versions. Example:

    bert:
      # tuned: begin, by paddlewheel tune on ...
      concurrency: 8
      # tuned: end
      # before tuning: concurrency: 2

The previous line of a key is commented out, because a YAML mapping has each key once. The next tuning
restores it before it writes new lines. All other lines stay byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.report import MAX_FILE_BYTES
from pipeline.errors import ConfigError
from pipeline.tuning.choice import describe_machine, list_engine_versions
from pipeline.tuning.tune import MODEL_SECTION, Settings

_BEGIN, _END, _BEFORE = "# tuned: begin", "# tuned: end", "# before tuning: "
_NOTED = re.compile(r"^ *# tuned: begin, by paddlewheel tune on (.*?)(?:;|$)", re.M)


class NotByLines(ConfigError):
    """Raised if no lines can be inserted into config.yml, because its sections use braces or anchors."""


def require_lines(config: Path, text: str, op: str) -> None:
    """Raise ConfigError if settings can't be inserted into this Op's section, before the long search begins.

    config: path of config.yml, for the error. text: the content of config.yml.
    """
    try:
        with_settings(text, op, Settings("paddle", "fp32", 1, 1, 1))
    except NotByLines:
        raise ConfigError(
            f"{config}: op.{op} is not written a key a line (it is in braces, or has anchors), so that no "
            "lines can be put in: write it a key a line"
        ) from None


def with_settings(text: str, op: str, settings: Settings) -> str:
    """Return the text of config.yml with the tuned settings in the section of an Op.

    Raises NotByLines, with the values to write by hand, if no lines can be inserted.
    """
    plain = without_settings(text)
    lines = plain.splitlines(keepends=True)
    by_hand = f"op.{op}: {settings.of_op()}, {MODEL_SECTION}: {settings.of_model()}"
    refusal = NotByLines(f"config.yml is not written a key a line, put in by hand: {by_hand}")
    try:
        root = yaml.compose(plain, yaml.SafeLoader)
        section = _below(_below(root, "op"), op)
        model = _below(section, MODEL_SECTION)
    except (KeyError, yaml.YAMLError):
        raise refusal from None
    changes = [(section, settings.of_op()), (model, settings.of_model())]
    # From the last line up, so that numbers of lines above stay true.
    for node, values in sorted(changes, key=lambda change: _first(change[0]).line, reverse=True):
        for start, end in sorted(_places(node, values), reverse=True):
            lines[start:end] = [comment_out(line) for line in lines[start:end]]
        first = _first(node)
        lines[first.line : first.line] = _block(first.column, values, _line_end(lines))
    written = "".join(lines)
    if not _says(written, plain, op, settings):
        raise refusal
    return written


def without_settings(text: str, source: str = "config.yml") -> str:
    """Return the original text of a configuration: tuned settings are removed. source: name of the file.

    Raises ConfigError if the comments that mark the settings are broken.
    """
    plain, inside = [], False
    for line in text.splitlines(keepends=True):
        stripped = line.strip()
        if stripped.startswith(_BEGIN):
            inside = True
        elif stripped == _END and inside:
            inside = False
        elif not inside:
            indent = line[: len(line) - len(line.lstrip(" "))]
            content = line[len(indent) :]
            plain.append(indent + content.removeprefix(_BEFORE) if content.startswith(_BEFORE) else line)
    if inside:
        raise ConfigError(f"{source}: a line {_BEGIN!r} has no {_END!r} after it; put it there")
    return "".join(plain)


def other_machine(config: Path) -> str:
    """Return the machine for which config.yml was tuned if it is not this machine; else an empty text."""
    try:
        with config.open(encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_FILE_BYTES)
    except OSError:
        return ""
    noted = _NOTED.search(text)
    return noted[1] if noted and noted[1] != _machine() else ""


def _machine() -> str:
    """Return the description of this machine, as written in the comments that mark tuned settings."""
    return describe_machine().replace(";", ",")  # which ends it in the line


def _block(column: int, values: Mapping[str, Any], line_end: str) -> list[str]:
    """Return the lines with the tuned settings between their marking comments, indented to a column."""
    begin, end = describe_marks()
    lines = [begin]
    lines += [
        f"{key}: {value:g}" if isinstance(value, float) else f"{key}: {value}"
        for key, value in values.items()
    ]
    return [" " * column + line + line_end for line in [*lines, end]]


def describe_marks() -> tuple[str, str]:
    """Return the comment lines before and after tuned settings.

    The first comment names the machine and the engines.
    """
    facts = "; ".join([_machine(), *list_engine_versions()])
    return f"{_BEGIN}, by paddlewheel tune on {facts}", _END


def _places(node: yaml.MappingNode, keys: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield the line ranges (start, end) of these keys in a section of the YAML file."""
    for key, value in node.value:
        if key.value in keys:
            end = value.end_mark
            yield key.start_mark.line, end.line + (1 if end.column or end.line == key.start_mark.line else 0)


def _first(node: yaml.MappingNode) -> yaml.Mark:
    """Return the position of a section's first key.

    The YAML node's own start may be at an anchor before the key.
    """
    first: yaml.Mark = node.value[0][0].start_mark
    return first


def comment_out(line: str) -> str:
    """Return a config.yml line as a comment that `without_settings` turns back into the line."""
    content = line.lstrip(" ")
    return line[: len(line) - len(content)] + _BEFORE + content


def _below(node: Any, name: str) -> yaml.MappingNode:
    """Return the YAML mapping under a key. Raises KeyError if it does not exist or is in braces."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if str(key.value) == name and isinstance(value, yaml.MappingNode) and not value.flow_style:
            return value
    raise KeyError(name)


def _says(written: str, plain: str, op: str, settings: Settings) -> bool:
    """Return whether the new text, parsed as YAML, differs from the old text only by the settings."""
    expected = yaml.safe_load(plain)
    expected["op"] = {**expected["op"], op: settings.laid_over(expected["op"][op])}
    try:
        return bool(yaml.safe_load(written) == expected)
    except yaml.YAMLError:
        return False


def _line_end(lines: list[str]) -> str:
    return "\r\n" if lines[0].endswith("\r\n") else "\n"
