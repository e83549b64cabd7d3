"""Every key of config.yml as markdown tables, from the models that validate it."""

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

Without effect in this version, though read and checked: \
`op.<name>.{client_config, encryption_key}`, \
`op.<name>.local_service_conf.{concurrency, workdir}`. \
Refused when set: `op.<name>.use_encryption_model`.
"""
_OF_MODELS = """\
# Keys of serving.yml

What `serving.yml`, beside a model, says of the model's inputs and outputs: `inputs` by the names under \
which clients send them, `outputs` by the aliases of the model's fetches. `paddlewheel new` writes both. \
`kind: tensor` is a feed or a fetch as it is, and has no other key.
"""


@dataclass(frozen=True)
class Words:
    """The words of one language.

    head: the first lines of the document. of_models: what stands before the sections of a model's own file.
    columns: the head of each table. kinds: the types of JSON schema.
    list_of: a pattern for the kind of the elements. from_to: one for kind, least and most. meanings: what
    each key means, by section and key; None: as the models describe it.
    """

    head: str
    of_models: str
    top_level: str
    columns: tuple[str, str, str, str]
    kinds: Mapping[str, str]
    section: str
    list_of: str
    from_to: str
    required: str
    comma: str
    meanings: Mapping[str, Mapping[str, str]] | None


ENGLISH = Words(
    head=_HEAD,
    of_models=_OF_MODELS,
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


def config_reference(words: Words = ENGLISH, of_models: Mapping[str, type[BaseModel]] | None = None) -> str:
    """The document: one table per section, in the order of the models. Raises KeyError for a key without a
    meaning in that language.

    of_models: the sections of serving.yml, by their headings.
    """
    schema = ServiceConfig.model_json_schema(by_alias=True, mode="serialization")
    parts = [words.head.rstrip("\n")]
    for path, section in _sections("", schema, schema["$defs"]):
        parts += [f"## `{path}`" if path else f"## {words.top_level}", _table(path, section, words)]
    parts.append(words.of_models.rstrip("\n"))
    for path, model in (of_models or {}).items():
        section = model.model_json_schema(mode="serialization")
        section["properties"].pop("kind", None)
        parts += [f"## `{path}`", _table(path, section, words)]
    return "\n\n".join(parts) + "\n"


def _sections(path: str, section: Schema, models: Mapping[str, Schema]) -> Iterator[tuple[str, Schema]]:
    """(dotted path, section) of this section and of all below it."""
    yield path, section
    for key, value in section["properties"].items():
        name, is_mapping = _find_section_model(value)
        if name:
            below = f"{path}.{key}" if path else key
            yield from _sections(f"{below}.<name>" if is_mapping else below, models[name], models)


def _find_section_model(value: Schema) -> tuple[str, bool]:
    """(name of the model that a value is a section of, whether it is a mapping of such); "" for none."""
    if "$ref" in value:
        return value["$ref"].rpartition("/")[2], False
    entries = value.get("additionalProperties")
    if isinstance(entries, Mapping) and "$ref" in entries:
        return entries["$ref"].rpartition("/")[2], True
    return next(
        (found for option in _options(value) if (found := _find_section_model(option))[0]), ("", False)
    )


def _options(value: Schema) -> Sequence[Schema]:
    return value.get("anyOf") or value.get("oneOf") or ()


def _table(path: str, section: Schema, words: Words) -> str:
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
    # A default outside the bounds stands for "absent", whose meaning the description tells.
    if _find_section_model(value)[0] or default is None or (low is not None and default < low):
        return ""
    return f"`{json.dumps(default, ensure_ascii=False)}`"


def _type(value: Schema, words: Words) -> str:
    if _find_section_model(value)[0]:
        others = [
            option
            for option in _options(value)
            if not _find_section_model(option)[0] and option["type"] != "null"
        ]
        return words.comma.join([words.section, *(_type(other, words) for other in others)])
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
    # Bounds behind a validator of ours keep pydantic's names in the schema.
    return value.get("minimum", value.get("ge")), value.get("maximum", value.get("le"))
