"""What an answer tells, and what a labelled row means, in one form: a label, labels, or entities."""

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


class Unlike(ServingError):
    """An answer, or a label of the file, that has no form to compare."""


class Task(NamedTuple):
    """What is compared. things: of a value of it the things with their classes, see `measures.by_class`."""

    kind: str
    things: Callable[[Any], Things]


def detect_task(answer: Any, gold: Any) -> Task:
    """What the first answered row shows: entities, several labels or one. Raises Unlike."""
    given = parsed(gold)
    if isinstance(given, list) and given and all(isinstance(one, dict) for one in given):
        return Task(ENTITIES, parse_entities)
    told = answer.get(ENTITIES) if isinstance(answer, dict) else None
    if told is not None:
        return Task(ENTITIES, parse_entities)
    if isinstance(answer, dict) and isinstance(answer.get(LABEL), list):
        return Task(ENTITIES, parse_tags)
    if isinstance(given, list):
        return Task(LABELS, parse_labels)
    return Task(LABEL, parse_label)


def told_by(task: Task, answer: Any) -> Any:
    """The part of an answer that tells the task's things. Raises Unlike where it is not there."""
    if not isinstance(answer, dict):
        return answer
    names = {LABEL: (LABEL,), LABELS: (LABELS, LABEL), ENTITIES: (ENTITIES, LABEL)}[task.kind]
    for name in names:
        if name in answer:
            return answer[name]
    raise Unlike(f"the answer has no {' or '.join(map(repr, names))}, only {', '.join(answer)}")


def parsed(value: Any) -> Any:
    """A list that stands in a text as JSON, as cells of CSV hold it; anything else as it is."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            return msgspec.json.decode(value)
        except msgspec.DecodeError:
            return value
    return value


def parse_label(value: Any) -> Things:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Unlike(f"{value!r} is no label: a text, or the number of a class")
    return frozenset([(None, str(value))])


def parse_labels(value: Any) -> Things:
    given = parsed(value)
    if not isinstance(given, list) or not all(isinstance(one, str | int) for one in given):
        raise Unlike(f"{value!r} is no list of labels")
    return frozenset((None, str(one)) for one in given if one != "")


def parse_entities(value: Any) -> Things:
    """Entities as objects with `start`, `end` and `label`; or a tag for each token, as in `parse_tags`."""
    given = parsed(value)
    if isinstance(given, list) and given and all(isinstance(one, str) for one in given):
        objects = [parsed_object(one) for one in given]
        if any(one is None for one in objects):
            return parse_tags(given)
        given = objects
    if not isinstance(given, list):
        raise Unlike(f"{value!r} is no list of entities")
    return frozenset(_entity(one) for one in given)


def parsed_object(text: str) -> Mapping[str, Any] | None:
    """An object in JSON; None for any other text."""
    if not text.startswith("{"):
        return None
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) else None


def _entity(value: Any) -> tuple[Any, str]:
    kind = next((value[name] for name in _KINDS if name in value), None) if isinstance(value, dict) else None
    if not isinstance(kind, str) or not all(isinstance(value.get(name), int) for name in _PLACE):
        raise Unlike(f"{value!r} is no entity: an object with start, end and label")
    return (value["start"], value["end"]), kind


def parse_tags(value: Any) -> Things:
    """The entities that tags spell, in BIO, BIOES or BIOUL; places count tokens."""
    given = parsed(value)
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise Unlike(f"{value!r} is no list of tags")
    found, start, kind = [], 0, ""
    for at, tag in enumerate([*given, OUTSIDE]):
        place, _, name = tag.partition("-") if tag != OUTSIDE else ("", "", "")
        if kind and (not name or name != kind or place in "BSU"):
            found.append(((start, at), kind))
            kind = ""
        if name and not kind:
            start, kind = at, name
        if kind and place in ("E", "L", "S", "U"):
            found.append(((start, at + 1), kind))
            kind = ""
    return frozenset(found)
