"""Every key of config.yml as markdown tables, from the models that validate it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.config.config_file import ServiceConfig

Schema = Mapping[str, Any]

HEAD = """\
# Keys of config.yml

Printed by `python -m pipeline config`. A key that is not listed is refused with the nearest known name, or, \
where Paddle Serving ignored it and it looks like no misspelt one, ignored with a warning; a key without a \
value counts as absent. `--print-config` prints what is in force for a service.

Without effect in this version, though read and checked: \
`op.<name>.{client_config, encryption_key}`, \
`op.<name>.local_service_conf.{concurrency, workdir}`. \
Refused when set: `op.<name>.use_encryption_model`.
"""
_TYPES = {"string": "text", "boolean": "true, false"}


def config_reference() -> str:
    """The document: one table per section, in the order of the models."""
    schema = ServiceConfig.model_json_schema(by_alias=True, mode="serialization")
    parts = [HEAD.rstrip("\n")]
    for path, section in _sections("", schema, schema["$defs"]):
        parts += [f"## `{path}`" if path else "## Top level", _table(section)]
    return "\n\n".join(parts) + "\n"


def _sections(path: str, section: Schema, models: Mapping[str, Schema]) -> Iterator[tuple[str, Schema]]:
    """(dotted path, section) of this section and of all below it."""
    yield path, section
    for key, value in section["properties"].items():
        name, is_mapping = _model_of(value)
        if name:
            below = f"{path}.{key}" if path else key
            yield from _sections(f"{below}.<name>" if is_mapping else below, models[name], models)


def _model_of(value: Schema) -> tuple[str, bool]:
    """(name of the model that a value is a section of, whether it is a mapping of such); "" for none."""
    if "$ref" in value:
        return value["$ref"].rpartition("/")[2], False
    entries = value.get("additionalProperties")
    if isinstance(entries, Mapping) and "$ref" in entries:
        return entries["$ref"].rpartition("/")[2], True
    return next((found for option in _options(value) if (found := _model_of(option))[0]), ("", False))


def _options(value: Schema) -> Sequence[Schema]:
    return value.get("anyOf") or value.get("oneOf") or ()


def _table(section: Schema) -> str:
    required = section.get("required", ())
    rows = ["| Key | Type | Default | Meaning |", "|---|---|---|---|"]
    for key, value in section["properties"].items():
        default = "required" if key in required and "default" not in value else _default(value)
        cells = (f"`{key}`", _type(value), default, value["description"])
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _default(value: Schema) -> str:
    default = value.get("default")
    low, _ = _bounds(value)
    # A default outside the bounds stands for "absent", whose meaning the description tells.
    if _model_of(value)[0] or default is None or (low is not None and default < low):
        return ""
    return f"`{json.dumps(default, ensure_ascii=False)}`"


def _type(value: Schema) -> str:
    if _model_of(value)[0]:
        others = [option for option in _options(value) if not _model_of(option)[0]]
        return ", ".join(["section", *(_type(other) for other in others if other["type"] != "null")])
    if "anyOf" in value:  # None beside the type: the key may be absent
        (value,) = (option for option in value["anyOf"] if option.get("type") != "null")
    if "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if value["type"] == "array":
        return f"list of {_type(value['items'])}"
    kind = _TYPES.get(value["type"], str(value["type"]))
    low, high = _bounds(value)
    if high is not None:
        return f"{kind} from {low} to {high}"
    if "exclusiveMinimum" in value:
        return f"{kind} > {value['exclusiveMinimum']}"
    return kind if low is None else f"{kind} ≥ {low}"


def _bounds(value: Schema) -> tuple[float | None, float | None]:
    # Bounds behind a validator of ours keep pydantic's names in the schema.
    return value.get("minimum", value.get("ge")), value.get("maximum", value.get("le"))
