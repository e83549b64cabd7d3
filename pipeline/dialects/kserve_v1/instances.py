"""FRONT PROCESS: parses KServe v1 bodies, a list of instances or columns, to the input tensors of a request.

The fields stay JSON text, which the worker decodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from pipeline.config.config_file import Limits
from pipeline.dialects.json_outline import ELEMENTS_PER_TENSOR, Outline, check_depth, nesting
from pipeline.dialects.kserve.unread import check_texts
from pipeline.dialects.kserve_v1.unread_rows import UnreadRows
from pipeline.errors import InvalidInput, TooLarge
from pipeline.front.http.http_handler import sniff_format
from pipeline.messages.frames import Part
from pipeline.models.tensor_spec import Signature, TensorSpec

MAX_VALUES = 1 << 18  # maximum number of instances and of their fields: each is a Python object in the front
MAX_ELEMENTS = 16 * MAX_VALUES  # maximum number of brackets, commas and colons, including short rows
_NOTHING = msgspec.Raw()

Raws = Sequence[msgspec.Raw]
_any = msgspec.json.Decoder(dict[str, Any])
_list = msgspec.json.Decoder(list[msgspec.Raw])
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    instances: msgspec.Raw = _NOTHING
    inputs: msgspec.Raw = _NOTHING
    parameters: msgspec.Raw = _NOTHING
    signature_name: str | None = None  # a member of TensorFlow Serving's API; ignored


_body = msgspec.json.Decoder(_Body)


class Instances(NamedTuple):
    """A parsed body of KServe v1: its instances as undecoded input tensors, and its parameters."""

    fields: dict[str, UnreadRows]  # the tensors by name
    rows: int  # number of instances that are rows; 0: the only instance is whole tensors
    by_columns: bool  # whether the body has `inputs`, not `instances`
    parameters: Mapping[str, Any]


def parse_instances(
    body: bytes, signature: Signature, limits: Limits, outline: Outline | None = None
) -> Instances:
    """Parse a KServe v1 body to the input tensors that a model declares.

    outline: a large body with placeholders for its long arrays, see `json_outline`; None for a small body.
    Raises InvalidInput (HTTP 400) with the instance and field, and TooLarge (413).
    """
    if outline is None:
        outline = Outline(body)
        check_depth(body, limits.json_depth)
    if kind := sniff_format(body):
        raise InvalidInput(f"the body is {kind}, no JSON")
    document = _decode_json(_body, outline.text, "the body")
    parameters = _parameters(document.parameters, limits)
    by_columns = not document.instances
    if by_columns is not bool(document.inputs):
        raise InvalidInput("the body must have either 'instances' or 'inputs'")
    rows = signature.has_rows
    if by_columns:
        columns, count = _decode_columns(document.inputs, signature, rows)
    else:
        columns, count = _decode_instances(document.instances, signature, outline)
    _check_count(count, rows, signature, limits)
    specs = {spec.name: spec for spec in signature.inputs}
    fields = {
        name: _make_unread(name, map(outline.restore, column), specs.get(name), rows)
        for name, column in columns.items()
    }
    check_texts(fields, limits)
    return Instances(fields, count if rows else 0, by_columns, parameters)


def _parameters(raw: msgspec.Raw, limits: Limits) -> dict[str, Any]:
    """Decode the member `parameters` of a body; empty if it is absent. Raises InvalidInput and TooLarge."""
    text = bytes(raw)
    if not text:
        return {}
    if text.count(b":") + text.count(b",") > ELEMENTS_PER_TENSOR * limits.tensors:
        raise TooLarge(f"'parameters' has too many values; limits.tensors is {limits.tensors}")
    parameters: dict[str, Any] = _decode_json(_any, raw, "'parameters'")
    if len(parameters) > limits.tensors:
        raise TooLarge(f"{len(parameters)} parameters were sent; limits.tensors is {limits.tensors}")
    return parameters


def _decode_instances(
    instances: msgspec.Raw, signature: Signature, outline: Outline
) -> tuple[dict[str, Raws], int]:
    """Convert the member `instances` to columns: for each field, a list with the JSON value of each instance.

    Returns the columns by field, and the number of instances.
    """
    items = _decode_list(instances, "'instances'")
    expected = [spec.name for spec in signature.inputs]
    if items and _is_list(items[0]) and _takes_lists(signature):
        return _decode_lists([outline.restore(item) for item in items], expected), len(items)
    if len(expected) == 1 and items and _are_bare(items[0], expected[0]):
        return {expected[0]: items}, len(items)
    _check_values(instances, 2)
    objects = _decode_json(_objects, instances, "'instances'")
    if signature.open:
        return {name: [value] for instance in objects[:1] for name, value in instance.items()}, len(objects)
    names = set(expected)
    for number, instance in enumerate(objects):
        if instance.keys() != names:
            raise _wrong_fields(f"instance {number}", instance, expected)
    return {name: [instance[name] for instance in objects] for name in expected}, len(objects)


def _is_list(item: msgspec.Raw) -> bool:
    return bytes(memoryview(item)[:1]) == b"["


def _takes_lists(signature: Signature) -> bool:
    """Return whether an instance may be a list with a value for each input, as a row of a table."""
    return signature.has_rows and all(len(spec.shape) == 1 for spec in signature.inputs)


def _decode_lists(rows: Sequence[Part], expected: Sequence[str]) -> dict[str, Raws]:
    """Convert instances that are lists to columns: for each field, the JSON values of all instances.

    expected: names of the fields, in the order of the lists.
    """
    if len(rows) * len(expected) > MAX_VALUES:
        raise TooLarge(f"the body has more than {MAX_VALUES} instances and fields")
    decoded = []
    for number, row in enumerate(rows):
        values = _decode_list(row, f"instance {number}")
        if len(values) != len(expected):
            names = ", ".join(expected)
            raise InvalidInput(f"instance {number} has {len(values)} values; a row has, in order, {names}")
        decoded.append(values)
    return {name: [values[at] for values in decoded] for at, name in enumerate(expected)}


def _are_bare(first: msgspec.Raw, name: str) -> bool:
    """Return whether instances are values of the model's only input, and not objects with fields.

    The first instance decides. An object `{"b64": ...}` counts as a value.
    """
    if bytes(memoryview(first)[:1]) != b"{":
        return True
    return name != "b64" and _decode_json(_object, first, "instance 0").keys() == {"b64"}


def _decode_columns(inputs: msgspec.Raw, signature: Signature, rows: bool) -> tuple[dict[str, Raws], int]:
    """Decode the member `inputs` to columns: for each field, a list of JSON values.

    rows: whether the model's tensors have rows; a column then has a value for each row, otherwise one value.
    Returns the columns by field, and the number of instances.
    """
    expected = [spec.name for spec in signature.inputs]
    if len(expected) == 1 and bytes(memoryview(inputs)[:1]) != b"{":
        fields = {expected[0]: inputs}
    else:
        _check_values(inputs, 1)
        fields = _decode_json(_object, inputs, "'inputs'")
        if expected and fields.keys() != set(expected):
            raise _wrong_fields("'inputs'", fields, expected)
    if not rows:
        return {name: [value] for name, value in fields.items()}, 1
    columns = {name: _decode_list(value, f"field {name!r} of 'inputs'") for name, value in fields.items()}
    counts = {name: len(column) for name, column in columns.items()}
    if len(set(counts.values())) > 1:
        row_counts = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise InvalidInput(f"the fields of 'inputs' have unequal numbers of rows: {row_counts}")
    return columns, next(iter(counts.values()))


def _decode_list(array: Part, subject: str) -> Raws:
    _check_values(array, 1)
    items: list[msgspec.Raw] = _decode_json(_list, array, subject)
    return items


def _decode_json(decoder: Any, text: Part, subject: str) -> Any:
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidInput(f"{subject} can't be read: {exc}") from None


def _check_values(text: Part, levels: int) -> None:
    """Raise TooLarge (HTTP 413) if the outer levels of a JSON text have more than MAX_VALUES values.

    levels: number of outer levels whose values count.
    """
    data = bytes(text)
    if data.count(b",") < MAX_VALUES:
        return
    outside, depth = nesting(data)
    commas = np.frombuffer(data, np.uint8) == ord(",")
    if int((commas & outside & (depth <= levels)).sum()) >= MAX_VALUES:
        raise TooLarge(f"the body has more than {MAX_VALUES} instances and fields")


def _check_count(count: int, rows: bool, signature: Signature, limits: Limits) -> None:
    if not count:
        raise InvalidInput("there is no instance: the list is empty")
    if not rows and count > 1:
        why = "declares no input_tensors" if signature.open else "has tensors that don't begin with rows (-1)"
        raise InvalidInput(f"{count} instances were sent; the model {why} and takes one a request")
    if count > limits.rows:
        raise TooLarge(f"{count} instances were sent; limits.rows is {limits.rows}")
    max_rows = signature.max_batch_size
    if max_rows and count > max_rows:
        raise InvalidInput(
            f"{count} instances were sent; the model takes at most {max_rows} a request "
            "(max_batch_size of its Op, else limits.kserve_rows)"
        )


def _make_unread(name: str, column: Iterable[Part], spec: TensorSpec | None, rows: bool) -> UnreadRows:
    data = b"[%b]" % b",".join(column)
    if spec is None:
        return UnreadRows(data, "", [], name, without_rows=True)
    if spec.datatype == "BF16":
        raise InvalidInput(f"field {name!r} is BF16, which has no form in JSON; send it over KServe v2")
    shape = list(spec.shape) if rows else [1, *spec.shape]
    return UnreadRows(data, spec.datatype, shape, name, without_rows=not rows, nullable=spec.nullable)


def _wrong_fields(where: str, fields: Mapping[str, Any], expected: Sequence[str]) -> InvalidInput:
    missing = [name for name in expected if name not in fields]
    unknown = [name[:100] for name in fields if name not in expected]
    problems = [f"lacks the field {name!r}" for name in missing[:3]]
    problems += [f"has a field {name!r} that the model does not take" for name in unknown[:3]]
    return InvalidInput(f"{where} {' and '.join(problems)}; the fields are {', '.join(expected)}")
