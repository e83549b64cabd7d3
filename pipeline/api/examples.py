"""Example requests for docs and error messages: declared by user code, else generated from the tensors."""

from __future__ import annotations

import base64
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from pipeline.api.dag import get_entry_ops
from pipeline.api.op import Op
from pipeline.engines.feeds import IMAGE_RANK
from pipeline.errors import ConfigError
from pipeline.models.signature import Variable, sized
from pipeline.models.tensor_spec import BY_NAME, RAW_ALONE, Signature, TensorSpec

KEY_VALUE_EXAMPLE = '{"key": ["0"], "value": ["..."]}'
MAX_EXAMPLE_CHARS = 400  # in an error message, which must stay readable
MAX_ELEMENTS = 4096  # of a generated feed: an image full of ones helps nobody
_ANY_LENGTH, _ANY_SIDE = 3, 32  # of an open axis, and of an open axis of an image
_ONE: dict[str, Any] = {"BYTES": "text", "BOOL": True, "FP16": 1.0, "BF16": 1.0, "FP32": 1.0, "FP64": 1.0}


NO_ARRAYS: Mapping[str, Any] = {}  # of a model without example feeds


class Examples(NamedTuple):
    """Example inputs that a service's steps (Ops) declare, for docs, curl commands and error messages."""

    row: dict[str, Any] = {}  # values of the declared tensors, as an instance of KServe v1
    key_values: dict[str, str] = {}  # for the key/value protocols
    bodies: dict[str, str] = {}  # raw bodies by media type, in base64
    parameters: dict[str, Any] = {}  # KServe parameters of the row

    def add_parameters(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of a KServe request body with the example's `parameters` added, if there are any."""
        return {**body, "parameters": self.parameters} if self.parameters else dict(body)


class ExampleRequest(NamedTuple):
    """An example of an HTTP POST request: path, body and media type."""

    path: str
    body: bytes
    media: str = "application/json"

    def command(self, address: str, file: str = "") -> str:
        """Return a curl command that sends the request to `address`, such as `http://localhost:9393`.

        The body is read from `file`; without `file` it is part of the command.
        """
        url = f"{address}{self.path}"
        if not file:
            return f"curl -s {url} -d {shlex.quote(self.body.decode())}"
        header = "" if self.media == "application/json" else f" -H 'content-type: {self.media}'"
        return f"curl -s {url}{header} --data-binary @{shlex.quote(file)}"


def build_example_requests(name: str, signature: Signature, examples: Examples) -> dict[str, ExampleRequest]:
    """Return example HTTP requests to the service `name`, by protocol: "http", "v1-http" and "v2-http".

    Examples of raw bodies (images, CSV) are keyed by their media type.
    """
    quoted = quote(name)
    v1, v2 = f"/v1/models/{quoted}:predict", f"/v2/models/{quoted}/infer"
    requests = {
        media: ExampleRequest(v1, base64.b64decode(text), media) for media, text in examples.bodies.items()
    }
    if examples.key_values:
        body = build_message(examples.key_values)
        requests["http"] = ExampleRequest(f"/{quoted}/prediction", body.encode())
    row = examples.key_values if signature.open else build_row(signature, examples.row)
    if row:
        requests["v1-http"] = ExampleRequest(v1, _json(examples.add_parameters({"instances": [row]})))
        if inputs := v2_inputs(signature, row):
            requests["v2-http"] = ExampleRequest(v2, _json(examples.add_parameters({"inputs": inputs})))
    return requests


def collect_examples(ops: Mapping[str, Op], signature: Signature) -> Examples:
    """Collect the example inputs that a service's first steps (the Ops that read the request) declare.

    Raises ConfigError with all mistakes.
    """
    entry_ops = get_entry_ops(ops)
    names = [spec.name for spec in signature.inputs]
    examples = Examples({}, {}, {}, {})
    flaws = []
    for op in entry_ops:
        examples.row.update(op.example)
        examples.parameters.update(op.example_parameters)
        examples.key_values.update(op.example_key_values)
        for media, body in op.example_bodies.items():
            examples.bodies[media] = base64.b64encode(body).decode()
        flaws += [
            f"Op {op.name}: example: {name!r} is no input; input_tensors has {', '.join(names) or 'none'}"
            for name in op.example
            if name not in names
        ]
        flaws += [
            f"Op {op.name}: example_key_values: {key!r}: {value!r} is no text under a text"
            for key, value in op.example_key_values.items()
            if not (isinstance(key, str) and isinstance(value, str))
        ]
    try:
        json.dumps(examples)
    except (TypeError, ValueError) as exc:
        flaws.append(f"example: {exc}; write it as JSON would: texts, numbers, lists")
    if flaws:
        raise ConfigError("\n".join(flaws))
    return examples


def build_message(key_values: Mapping[str, str]) -> str:
    """Return the JSON body of a key/value request: `{"key": [...], "value": [...]}`."""
    message = {"key": list(key_values), "value": list(key_values.values())}
    return json.dumps(message, ensure_ascii=False)


def short_message(key_values: Mapping[str, str]) -> str:
    """Return the JSON body of the declared key/value example, to be quoted in an error message.

    Returns a generic body if there is no example, or if the example is too long.
    """
    text = build_message(key_values) if key_values else KEY_VALUE_EXAMPLE
    return text if len(text) <= MAX_EXAMPLE_CHARS else KEY_VALUE_EXAMPLE


def build_row(signature: Signature, examples: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an `instances` element of a KServe v1 request: a value for each input tensor.

    Tensors without an example get generated values. Returns None if a generated value would be too large, or
    can't be written in JSON.
    """
    row = {}
    for spec in signature.inputs:
        shape = spec.shape[1:] if signature.has_rows else spec.shape
        value = examples[spec.name] if spec.name in examples else _generate_value(spec, shape)
        if value is None:
            return None
        row[spec.name] = value
    return row


def v2_inputs(signature: Signature, row: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the `inputs` of a KServe v2 request for one row of values.

    Returns None if a value can't be written in JSON.
    """
    if signature.open:  # a text under each key
        return [
            {"name": name, "datatype": "BYTES", "shape": [1], "data": [text]} for name, text in row.items()
        ]
    inputs: list[dict[str, Any]] = []
    for spec in signature.inputs:
        value = row[spec.name]
        if not isinstance(value, list) and spec.shape[1:] == (1,) and signature.has_rows:
            value = [value]
        data = list(_flat(value))
        if spec.datatype in RAW_ALONE or any(isinstance(element, dict) for element in data):
            return None
        shape = [1, *_shape(value)] if signature.has_rows else _shape(value)
        inputs.append({"name": spec.name, "datatype": spec.datatype, "shape": shape, "data": data})
    return inputs


def example_body(feeds: Sequence[Variable], arrays: Mapping[str, Any] = NO_ARRAYS) -> str:
    """Return the JSON body of a key/value request with an array for each input tensor of a model.

    `feeds` describes the tensors, and `arrays` has example arrays by tensor name. Other tensors are filled
    with ones. The size of the body is not limited.
    """
    return build_message({feed.alias: _format_feed(feed, arrays) for feed in feeds})


def feed_texts(feeds: Sequence[Variable], arrays: Mapping[str, Any] = NO_ARRAYS) -> dict[str, str] | None:
    """Return the text of each input tensor's array in `example_body`.

    None if an array has over MAX_ELEMENTS elements.
    """
    shapes = [arrays[f.alias].shape if f.alias in arrays else _get_example_shape(f) for f in feeds]
    if any(math.prod(shape) > MAX_ELEMENTS for shape in shapes):
        return None
    return {feed.alias: _format_feed(feed, arrays) for feed in feeds}


def _format_feed(feed: Variable, arrays: Mapping[str, Any]) -> str:
    return json.dumps(arrays[feed.alias].tolist()) if feed.alias in arrays else _format_ones(feed)


def short_body(feeds: Sequence[Variable]) -> str:
    """Return the JSON body of `example_body` for an error message.

    If the body is too long, returns the dtype and shape of each tensor.
    """
    body = "" if feed_texts(feeds) is None else example_body(feeds)
    description = ", ".join(f"{feed.alias} {_describe_feed(feed)}" for feed in feeds)
    return body if 0 < len(body) <= MAX_EXAMPLE_CHARS else description


def short_example(feed: Variable) -> str:
    """Return a JSON list of ones for one input tensor, for an error message.

    If the list is too long, returns the tensor's dtype and shape.
    """
    text = "" if feed_texts([feed]) is None else _format_ones(feed)
    return text if 0 < len(text) <= MAX_EXAMPLE_CHARS else _describe_feed(feed)


def _format_ones(feed: Variable) -> str:
    """Return a JSON list of ones in the shape of an input tensor with one row."""
    return json.dumps(_nested(_get_example_shape(feed), _ONE.get(BY_NAME[feed.dtype].datatype, 1)))


def _get_example_shape(feed: Variable) -> tuple[int, ...]:
    if feed.is_lod and len(feed.shape) == 1:  # descriptions of ragged feeds leave the second axis out
        return (1, 1)
    longest = feed.longest[1] if feed.longest else _ANY_SIDE
    return sized(feed.shape, 1, min(longest, _any_length(len(feed.shape))))


def _any_length(rank: int) -> int:
    return _ANY_SIDE if rank >= IMAGE_RANK else _ANY_LENGTH


def _describe_feed(feed: Variable) -> str:
    return f"{feed.dtype} {list(feed.shape)}"


def _generate_value(spec: TensorSpec, shape: tuple[int, ...]) -> Any:
    lengths = [_any_length(len(spec.shape)) if length == -1 else length for length in shape]
    if math.prod(lengths) > MAX_ELEMENTS or spec.datatype == "BF16":
        return None
    return _nested(lengths, _ONE.get(spec.datatype, 1))


def _nested(shape: Sequence[int], value: Any) -> Any:
    for length in reversed(shape):
        value = [value] * length
    return value


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _shape(value: Any) -> list[int]:
    return [len(value), *(_shape(value[0]) if value else ())] if isinstance(value, list) else []


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for element in value:
            yield from _flat(element)
    else:
        yield value
