"""Generates the reference page of config.yml: markdown tables of all keys, from the pydantic models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from pipeline.config.config_file import ServiceConfig

Schema = Mapping[str, Any]

_HEAD = """\
# Keys of config.yml

[中文](config_zh.md)

Printed by `paddlewheel config`. `--print-config` prints what is in force for a service.

A key without a value counts as absent. An unknown key is refused with the nearest known name. One that \
Paddle Serving ignored is ignored with a warning, unless it looks like a misspelt one.

`${NAME}` in a value is replaced by the environment variable, `${NAME:-default}` by the default if the \
variable is unset or empty. An unset variable without a default is an error. Quote such a value inside \
`[...]` or `{...}`. A quoted value stays text. `$${` stands for `${`.

Without effect in this version, though read and checked: \
`op.<name>.{client_config, encryption_key}`, \
`op.<name>.local_service_conf.{concurrency, workdir}`. \
Refused when set: `op.<name>.use_encryption_model`.
"""
_SERVING_YML = """\
# Keys of serving.yml

What `serving.yml`, beside a model, says of the model's inputs and outputs: `inputs` by the names under \
which clients send them, `outputs` by the aliases of the model's fetches. `paddlewheel new` writes both. \
`kind: tensor` is a feed or a fetch as it is, and has no other key.
"""


@dataclass(frozen=True)
class Words:
    """Texts of the reference page in one language."""

    head: str  # first lines of the document
    serving_yml: str  # introduction of the sections of serving.yml
    top_level: str
    columns: tuple[str, str, str, str]  # head of each table
    kinds: Mapping[str, str]  # by type of JSON schema
    section: str
    list_of: str  # pattern for the type of the elements
    from_to: str  # pattern for type, minimum and maximum
    required: str
    comma: str
    meanings: Mapping[str, Mapping[str, str]] | None  # by section and key; None: the models' descriptions


ENGLISH = Words(
    head=_HEAD,
    serving_yml=_SERVING_YML,
    top_level="Top level",
    columns=("Key", "Type", "Default", "Meaning"),
    kinds={"string": "text", "integer": "integer", "number": "number", "boolean": "true, false"},
    section="section",
    list_of="list of {}",
    from_to="{0} from {1} to {2}",
    required="required",
    comma=", ",
    meanings=None,
)


def config_reference(
    words: Words = ENGLISH, serving_sections: Mapping[str, type[BaseModel]] | None = None
) -> str:
    """Return the reference page of config.yml as markdown, with a table per section.

    `serving_sections` are the sections of serving.yml, by their headings. Raises KeyError for a key without a
    meaning in that language.
    """
    schema = ServiceConfig.model_json_schema(by_alias=True, mode="serialization")
    parts = [words.head.rstrip("\n")]
    for path, section in _walk_sections("", schema, schema["$defs"]):
        parts += [
            f"## `{path}`" if path else f"## {words.top_level}",
            _format_section_table(path, section, words),
        ]
    parts.append(words.serving_yml.rstrip("\n"))
    for path, model in (serving_sections or {}).items():
        section = model.model_json_schema(mode="serialization")
        section["properties"].pop("kind", None)
        parts += [f"## `{path}`", _format_section_table(path, section, words)]
    return "\n\n".join(parts) + "\n"


def _walk_sections(path: str, section: Schema, models: Mapping[str, Schema]) -> Iterator[tuple[str, Schema]]:
    """Yield dotted path and JSON schema of a section and of all sections below it."""
    yield path, section
    for key, value in section["properties"].items():
        name, is_mapping = _find_section_model(value)
        if name:
            below = f"{path}.{key}" if path else key
            yield from _walk_sections(f"{below}.<name>" if is_mapping else below, models[name], models)


def _find_section_model(value: Schema) -> tuple[str, bool]:
    """Return the model name of a key that holds a section, and whether it maps names to sections.

    The name is empty for a key with a plain value.
    """
    if "$ref" in value:
        return value["$ref"].rpartition("/")[2], False
    entries = value.get("additionalProperties")
    if isinstance(entries, Mapping) and "$ref" in entries:
        return entries["$ref"].rpartition("/")[2], True
    return next(
        (match for option in _options(value) if (match := _find_section_model(option))[0]), ("", False)
    )


def _options(value: Schema) -> Sequence[Schema]:
    return value.get("anyOf") or value.get("oneOf") or ()


def _format_section_table(path: str, section: Schema, words: Words) -> str:
    required = section.get("required", ())
    rows = ["| " + " | ".join(words.columns) + " |", "|---|---|---|---|"]
    for key, value in section["properties"].items():
        default = words.required if key in required and "default" not in value else _default(value)
        meaning = words.meanings[path][key] if words.meanings is not None else value["description"]
        cells = (f"`{key}`", _type(value, words), default, meaning)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _default(value: Schema) -> str:
    default = value.get("default")
    low, _ = _bounds(value)
    # A default outside the bounds, or `auto` as a number, means "absent", which the description explains.
    is_absent = default is None or (low is not None and (isinstance(default, str) or default < low))
    if _find_section_model(value)[0] or is_absent:
        return ""
    return f"`{json.dumps(default, ensure_ascii=False)}`"


def _type(value: Schema, words: Words) -> str:
    if _find_section_model(value)[0]:
        alternatives = [
            option
            for option in _options(value)
            if not _find_section_model(option)[0] and option["type"] != "null"
        ]
        return words.comma.join([words.section, *(_type(alternative, words) for alternative in alternatives)])
    if "anyOf" in value:  # None beside the type: the key may be absent
        (value,) = (option for option in value["anyOf"] if option.get("type") != "null")
    if "enum" in value:
        return words.comma.join(f"`{choice}`" for choice in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if value["type"] == "array":
        return words.list_of.format(_type(value["items"], words))
    kind = words.kinds[value["type"]]
    low, high = _bounds(value)
    if high is not None:
        return words.from_to.format(kind, low, high)
    if "exclusiveMinimum" in value:
        return f"{kind} > {value['exclusiveMinimum']}"
    return kind if low is None else f"{kind} ≥ {low}"


def _bounds(value: Schema) -> tuple[float | None, float | None]:
    # Bounds behind our own validator keep pydantic's names in the schema.
    return value.get("minimum", value.get("ge")), value.get("maximum", value.get("le"))
