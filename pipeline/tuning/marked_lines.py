"""The lines that `paddlewheel tune` writes into config.yml, between marks, and the machine noted in them.

    bert:
      # tuned: begin, by paddlewheel tune on Some CPU, 8 cores; onnxruntime 1.31.1
      concurrency: 8
      # tuned: end
      # before tuning: concurrency: 2

A key that stood there is commented out, as a YAML mapping may have it once; the next tuning takes all of that
back before it writes its own. Everything else stays byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.report import MAX_FILE_BYTES
from pipeline.errors import ConfigError
from pipeline.tuning.kept import machine, versions
from pipeline.tuning.settings import MODEL_SECTION, Settings

_BEGIN, _END, _BEFORE = "# tuned: begin", "# tuned: end", "# before tuning: "
_NOTED = re.compile(r"^ *# tuned: begin, by paddlewheel tune on (.*?)(?:;|$)", re.M)


class NotByLines(ConfigError):
    """A config.yml into which no lines can be put: its sections are in braces, or it has anchors."""


def require_lines(config: Path, text: str, op: str) -> None:
    """Raises ConfigError where the settings of an Op can't be put in, whatever they will be."""
    try:
        with_settings(text, op, Settings("paddle", "fp32", 1, 1, 1))
    except NotByLines:
        raise ConfigError(
            f"{config}: op.{op} is not written a key a line (it is in braces, or has anchors), so that no "
            "lines can be put in: write it a key a line"
        ) from None


def with_settings(text: str, op: str, settings: Settings) -> str:
    """config.yml with the settings of an Op in it. Raises NotByLines where it is not written so that lines
    can be put in, with the values to write by hand."""
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
            lines[start:end] = [_commented(line) for line in lines[start:end]]
        first = _first(node)
        lines[first.line : first.line] = _block(first.column, values, _line_end(lines))
    written = "".join(lines)
    if not _says(written, plain, op, settings):
        raise refusal
    return written


def without_settings(text: str) -> str:
    """config.yml as it was before it was tuned."""
    kept, inside = [], False
    for line in text.splitlines(keepends=True):
        told = line.strip()
        if told.startswith(_BEGIN):
            inside = True
        elif told == _END and inside:
            inside = False
        elif not inside:
            indent = line[: len(line) - len(line.lstrip(" "))]
            given = line[len(indent) :]
            kept.append(indent + given.removeprefix(_BEFORE) if given.startswith(_BEFORE) else line)
    if inside:
        raise ConfigError(f"config.yml: a line {_BEGIN!r} has no {_END!r} after it; put it there")
    return "".join(kept)


def other_machine(config: Path) -> str:
    """The machine for which config.yml was tuned where that is not this one; else empty."""
    try:
        with config.open(encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_FILE_BYTES)
    except OSError:
        return ""
    noted = _NOTED.search(text)
    return noted[1] if noted and noted[1] != _machine() else ""


def _machine() -> str:
    return machine().replace(";", ",")  # which ends it in the line


def _block(column: int, values: Mapping[str, Any], line_end: str) -> list[str]:
    facts = "; ".join([_machine(), *versions()])
    told = [f"{_BEGIN}, by paddlewheel tune on {facts}"]
    told += [
        f"{key}: {value:g}" if isinstance(value, float) else f"{key}: {value}"
        for key, value in values.items()
    ]
    return [" " * column + line + line_end for line in [*told, _END]]


def _places(node: yaml.MappingNode, keys: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """The lines of the keys that stand there already."""
    for key, value in node.value:
        if key.value in keys:
            end = value.end_mark
            yield key.start_mark.line, end.line + (1 if end.column or end.line == key.start_mark.line else 0)


def _first(node: yaml.MappingNode) -> yaml.Mark:
    """Where the first key of a section stands; its own mark may be that of an anchor before it."""
    first: yaml.Mark = node.value[0][0].start_mark
    return first


def _commented(line: str) -> str:
    given = line.lstrip(" ")
    return line[: len(line) - len(given)] + _BEFORE + given


def _below(node: Any, name: str) -> yaml.MappingNode:
    """The section below a key. Raises KeyError where there is none, or one in braces."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if str(key.value) == name and isinstance(value, yaml.MappingNode) and not value.flow_style:
            return value
    raise KeyError(name)


def _says(written: str, plain: str, op: str, settings: Settings) -> bool:
    """Whether the new text says what the old one does, with the settings and nothing else changed."""
    expected = yaml.safe_load(plain)
    expected["op"] = {**expected["op"], op: settings.laid_over(expected["op"][op])}
    try:
        return bool(yaml.safe_load(written) == expected)
    except yaml.YAMLError:
        return False


def _line_end(lines: list[str]) -> str:
    return "\r\n" if lines[0].endswith("\r\n") else "\n"
