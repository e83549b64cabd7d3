"""The labels of answers and of labelled rows in one form: a label, labels, or entities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from pipeline.errors import ServingError

LABEL, LABELS, ENTITIES = "label", "labels", "entities"
OUTSIDE = "O"
_PLACE = ("start", "end")
_KINDS = ("label", "type", "entity", "entity_group")  # names that a file of entities may have for the class

Things = frozenset[tuple[Any, str]]


class Incomparable(ServingError):
    """An answer or a label that can't be compared."""


class Task(NamedTuple):
    """The kind of labels to compare."""

    kind: str  # LABEL, LABELS or ENTITIES
    things: Callable[[Any], Things]  # parses a value to (thing, class) pairs, see `measures.by_class`


def detect_task(answer: Any, gold: Any) -> Task:
    """Return the task of the first answered row: entities, several labels, or one label."""
    label = parsed(gold)
    if isinstance(label, list) and label and all(isinstance(entity, dict) for entity in label):
        return Task(ENTITIES, parse_entities)
    entities = answer.get(ENTITIES) if isinstance(answer, dict) else None
    if entities is not None:
        return Task(ENTITIES, parse_entities)
    if isinstance(answer, dict) and isinstance(answer.get(LABEL), list):
        return Task(ENTITIES, parse_tags)
    if isinstance(label, list):
        return Task(LABELS, parse_labels)
    return Task(LABEL, parse_label)


def select_prediction(task: Task, answer: Any) -> Any:
    """Return the part of an answer with the task's labels. Raise Incomparable without such a part."""
    if not isinstance(answer, dict):
        return answer
    names = {LABEL: (LABEL,), LABELS: (LABELS, LABEL), ENTITIES: (ENTITIES, LABEL)}[task.kind]
    for name in names:
        if name in answer:
            return answer[name]
    raise Incomparable(f"the answer has no {' or '.join(map(repr, names))}, only {', '.join(answer)}")


def parsed(value: Any) -> Any:
    """Parse a JSON list in a text, as in a cell of CSV. Return other values unchanged."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            return msgspec.json.decode(value)
        except msgspec.DecodeError:
            return value
    return value


def parse_label(value: Any) -> Things:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Incomparable(f"{value!r} is no label: a text, or the number of a class")
    return frozenset([(None, str(value))])


def parse_labels(value: Any) -> Things:
    labels = parsed(value)
    if not isinstance(labels, list) or not all(isinstance(label, str | int) for label in labels):
        raise Incomparable(f"{value!r} is no list of labels")
    return frozenset((None, str(label)) for label in labels if label != "")


def parse_entities(value: Any) -> Things:
    """Parse entities: objects with `start`, `end` and `label`, or a tag for each token (see `parse_tags`)."""
    entities = parsed(value)
    if isinstance(entities, list) and entities and all(isinstance(entity, str) for entity in entities):
        objects = [parsed_object(entity) for entity in entities]
        if any(entity is None for entity in objects):
            return parse_tags(entities)
        entities = objects
    if not isinstance(entities, list):
        raise Incomparable(f"{value!r} is no list of entities")
    return frozenset(_entity(entity) for entity in entities)


def parsed_object(text: str) -> Mapping[str, Any] | None:
    """Parse a JSON object. Return None for any other text."""
    if not text.startswith("{"):
        return None
    try:
        decoded = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return decoded if isinstance(decoded, dict) else None


def _entity(value: Any) -> tuple[Any, str]:
    kind = next((value[name] for name in _KINDS if name in value), None) if isinstance(value, dict) else None
    if not isinstance(kind, str) or not all(isinstance(value.get(name), int) for name in _PLACE):
        raise Incomparable(f"{value!r} is no entity: an object with start, end and label")
    return (value["start"], value["end"]), kind


def parse_tags(value: Any) -> Things:
    """Parse tags in BIO, BIOES or BIOUL to entities; start and end count tokens."""
    tags = parsed(value)
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise Incomparable(f"{value!r} is no list of tags")
    entities, start, kind = [], 0, ""
    for at, tag in enumerate([*tags, OUTSIDE]):
        place, _, name = tag.partition("-") if tag != OUTSIDE else ("", "", "")
        if kind and (not name or name != kind or place in "BSU"):
            entities.append(((start, at), kind))
            kind = ""
        if name and not kind:
            start, kind = at, name
        if kind and place in ("E", "L", "S", "U"):
            entities.append(((start, at + 1), kind))
            kind = ""
    return frozenset(entities)
