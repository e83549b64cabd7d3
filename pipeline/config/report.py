"""Reads YAML files, replaces `${NAME}` by environment variables, and describes validation errors."""

from __future__ import annotations

import difflib
import os
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import yaml
from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic.fields import FieldInfo

from pipeline.errors import ConfigError

_REFERENCE = re.compile(
    r"\$\$\{"  # a literal `${`
    r"|\$\{(?:(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\})?",
    re.ASCII,
)


class _InvalidReference(Exception):
    pass


def replace_variables(root: yaml.Node, loader: Any, environment: Mapping[str, str]) -> list[str]:
    """Replace `${NAME}` in all values of a YAML tree with environment variables, in place.

    Returns an error message for each invalid reference. An unquoted value gets its YAML type after the
    replacement: `http_port: ${PORT}` is an integer.
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


MAX_FILE_BYTES = 1 << 20
BETWEEN_KEYS = "between_keys"  # type of PydanticCustomErrors about several keys, reported without a path

# Replacements for pydantic's messages, which are for programmers, by type of error.
EXPECTED = {
    "int_parsing": "an integer",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "a section of keys and values",
    "model_type": "a section of keys and values",
    "model_attributes_type": "a section of keys and values",
}


# Paddle Serving's sections. It ignored unknown keys there, and apps store their own keys in them.
ORIGINAL_SECTIONS = ((), ("dag",), ("dag", "tracer"), ("op", "*"), ("op", "*", "local_service_conf"))
# Similarity, 0 to 1, from which an unknown key counts as a misspelt one; lower for keys in NEEDS.
MISSPELT, MISSPELT_NEED = 0.8, 0.65
_FULL_WIDTH = "\uff1a"  # the colon of Chinese texts
NEEDS = ("http_port", "rpc_port", "model_config")
# Keys of other servers, at the top level or in `dag`, with the keys that they stand for here.
_OTHER_SERVERS = {
    "port": "http_port is for HTTP, rpc_port for gRPC",
    "grpc_port": "rpc_port is for gRPC; v2.grpc_port opens a second port",
    "timeout": "dag.request_timeout limits a request, in seconds; op.<name>.timeout limits a try of an Op, "
    "in milliseconds",
}


class _NotingLoader(yaml.SafeLoader):
    """YAML SafeLoader that records duplicate keys. Of duplicate keys, the last value is used."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self.notes: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in keys:
                line = key_node.start_mark.line + 1
                self.notes.append(f"line {line}: {key!r} is given twice; the last counts")
            if isinstance(key, str):
                keys.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, notes: list[str] | None = None) -> dict[str, Any]:
    """Return the mapping in a YAML file, with `${NAME}` in values replaced from the environment.

    Raises ConfigError for an unreadable, large or invalid file, and for an unset variable. Warnings, such
    as duplicate keys, are appended to `notes`.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} can't be read ({error.strerror}); name the configuration file.") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is over {MAX_FILE_BYTES} bytes; a configuration file is some KB.")
    try:
        loader = _NotingLoader(content)
        root = loader.get_single_node()
        unset = [] if root is None else replace_variables(root, loader, os.environ)
        data = None if root is None or unset else loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        hint = _get_yaml_hint(error, content) if mark else ""
        raise ConfigError(f"{path}:{where}: no valid YAML: {error.problem}{hint}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        why = _no_utf8(content) or f" no valid YAML: {str(error).splitlines()[0]}"
        raise ConfigError(f"{path}:{why}") from None
    if unset:
        raise ConfigError("\n".join(f"{path}: {error}" for error in unset))
    if not isinstance(data, dict):
        content_error = "is empty" if data is None else f"holds {_shorten(data)}"
        raise ConfigError(f"{path} {content_error}; expected keys and values, e.g. `http_port: 18082`.")
    if notes is not None:
        notes += [f"{path}: {note}" for note in dict.fromkeys(loader.notes)]
    return data


def _no_utf8(content: bytes) -> str:
    """Return an error message for the first byte of a file that is not UTF-8; empty for valid UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return f" line {line}: byte 0x{content[error.start]:02x} is no UTF-8; save the file as UTF-8"
    return ""


def _get_yaml_hint(error: yaml.MarkedYAMLError, content: bytes) -> str:
    """Return a hint, as the end of an error message, for a common YAML mistake; empty for other mistakes."""
    assert error.problem_mark is not None
    last = error.problem_mark.line
    lines = content.decode(errors="replace").splitlines()
    for number in range(max(0, last - 2), min(last + 1, len(lines))):
        if _FULL_WIDTH in lines[number].partition("#")[0]:
            return f"; line {number + 1} has the full-width {_FULL_WIDTH!r}, write ':'"
    problem = error.problem or ""
    if "'\\t'" in problem:
        return "; indent with spaces, not with tabs"
    return "; the keys of a section begin in one column" if "expected <block end>" in problem else ""


def drop_unknown_keys(
    source: str, data: Mapping[str, Any], error: ValidationError, root: type[BaseModel]
) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration without unknown keys that Paddle Serving ignored, and a warning for each.

    A key that looks misspelt is kept, so that validation rejects it.
    """
    cleaned: dict[str, Any] = dict(data)
    notes = []
    for mistake in error.errors(include_url=False):
        path = mistake["loc"]
        if mistake["type"] != "extra_forbidden" or not _is_original_section(path[:-1]):
            continue
        section = _get_section(data, path[:-1])
        if not _misspells(root, path, section):
            cleaned = _remove_key(cleaned, path)
            where = ".".join(map(str, path))
            notes.append(f"{source}: {where}: unknown key, without effect; {_suggestion(root, path)}")
    return cleaned, notes


def _is_original_section(section: tuple[Any, ...]) -> bool:
    any_op = tuple("*" if at == 1 and section[0] == "op" else part for at, part in enumerate(section))
    return any_op in ORIGINAL_SECTIONS


def _get_section(data: Any, path: Sequence[Any]) -> Mapping[str, Any]:
    for part in path:
        data = data[part]
    return data  # type: ignore[no-any-return]  # of YAML


def _remove_key(data: Mapping[str, Any], path: Sequence[Any]) -> dict[str, Any]:
    """Return a copy of nested mappings without the key at the end of `path`."""
    first, *rest = path
    if not rest:
        return {key: value for key, value in data.items() if key != first}
    return {**data, first: _remove_key(data[first], rest)}


def _misspells(root: type[BaseModel], path: Sequence[Any], section: Mapping[str, Any]) -> bool:
    """Whether the last key of `path` is probably a misspelt key of its section.

    The key must resemble a missing key of the section, and must not be a key of any section.
    """
    key = str(path[-1])
    if _is_of_other_server(path):
        return key.endswith("port") and section.keys().isdisjoint(("http_port", "rpc_port"))
    if any(name == key for _, name in _all_keys(root)):
        return False
    missing = [name for name in _keys(_model_at(root, path[:-1])) if name not in section]
    needs = [name for name in missing if name in NEEDS]
    return bool(
        difflib.get_close_matches(key, missing, n=1, cutoff=MISSPELT)
        or difflib.get_close_matches(key, needs, n=1, cutoff=MISSPELT_NEED)
    )


def _is_of_other_server(path: Sequence[Any]) -> bool:
    return path[-1] in _OTHER_SERVERS and tuple(path[:-1]) in ((), ("dag",))


def describe_mistakes(
    source: str, error: ValidationError, root: type[BaseModel], overrides: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return a message with a line per validation error: `source: key.path: VALUE given; ALLOWED VALUES`.

    `overrides` are the values that come from the script's code and not from the file.
    """
    lines = []
    for mistake in error.errors(include_url=False):
        path = tuple(part for part in mistake["loc"] if not str(part).startswith(("function-", "[key]")))
        where = f"{source}: {'.'.join(map(str, path))}" if path else source
        if len(path) >= 3 and path[0] == "op" and path[2] in overrides.get(str(path[1]), ()):
            where = f"{source}: Op(name={path[1]!r}, {path[2]}=...)"
        if mistake["type"] == BETWEEN_KEYS:
            lines.append(f"{source}: {mistake['msg']}")
        elif mistake["type"] == "extra_forbidden":
            lines.append(f"{where}: unknown key; {_suggestion(root, path)}")
        else:
            lines.append(f"{where}: {_describe_mistake(mistake)}")
    return "\n".join(dict.fromkeys(lines))


def _describe_mistake(mistake: Mapping[str, Any]) -> str:
    kind, context, value = mistake["type"], mistake.get("ctx", {}), _shorten(mistake["input"])
    if kind == "missing":
        return "missing"
    if kind == "value_error":
        reason = str(context["error"])
        return reason if isinstance(mistake["input"], Mapping) else f"{value} given; {reason}"
    if kind == "literal_error":
        return f"{value} given; allowed: {context['expected']}"
    if kind == "string_pattern_mismatch":
        return f"{value} given; it must match {context['pattern']}"
    if kind in EXPECTED:
        return f"{value} given; expected {EXPECTED[kind]}"
    bound = str(mistake["msg"]).removeprefix("Input should be ")
    return f"{value} given; it must be {bound}"


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _suggestion(root: type[BaseModel], path: Sequence[Any]) -> str:
    """Return a hint for the unknown key at the end of `path`: the section it belongs to, or a similar key."""
    key = str(path[-1])
    if _is_of_other_server(path):
        return _OTHER_SERVERS[key]
    section = _model_at(root, path[:-1])
    names = list(_keys(section))
    homes = [home for home, name in _all_keys(root) if name == key]
    if homes:
        return f"it belongs in {' or '.join(home or 'the top level' for home in homes)}"
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    return f"known here: {', '.join(names)}"


def _keys(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield _key(name, field)


def _key(name: str, field: FieldInfo) -> str:
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        return str(alias.choices[0])
    return alias if isinstance(alias, str) else name


def _model_at(root: type[BaseModel], path: Sequence[Any]) -> type[BaseModel]:
    """Return the pydantic model of the configuration section at `path`.

    Keys of mappings (names of Ops and tensors) may be any text.
    """
    model, inside_mapping = root, False
    for part in path:
        if inside_mapping:
            inside_mapping = False
            continue
        fields = {_key(name, field): field for name, field in model.model_fields.items()}
        if part not in fields:
            break
        child, inside_mapping = _child(fields[part].annotation)
        if child is None:
            break
        model = child
    return model


def _child(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """Return the pydantic model in a type annotation, or None, and whether it is a mapping's value type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    origin = get_origin(annotation)
    if origin is dict:
        return _child(get_args(annotation)[1])[0], True
    if origin in (Union, types.UnionType):
        for option in get_args(annotation):
            child, mapping = _child(option)
            if child is not None:
                return child, mapping
    return None, False


def _all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted section, key) for every key of a pydantic model and of the models nested in it."""
    for name, field in model.model_fields.items():
        key = _key(name, field)
        yield prefix, key
        child, mapping = _child(field.annotation)
        if child is not None:
            section = f"{prefix}.{key}" if prefix else key
            yield from _all_keys(child, f"{section}.<name>" if mapping else section)
