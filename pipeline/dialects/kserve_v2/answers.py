"""Encodes KServe v2 responses: JSON with raw bytes, protobuf, and Triton's `generate`.

The worker encodes a response. The front adds the request's id where several requests share the response.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from client.protos.kserve_v2_pb2 import ModelInferResponse
from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.dialects.kserve.unread import convert_output, no_tensor
from pipeline.dialects.message_fields import encode_varint
from pipeline.errors import UnprintableAnswer
from pipeline.messages.frames import Part
from pipeline.models.tensor_spec import RAW_ALONE, TensorSpec
from pipeline.wire.v2_tensors import BYTES, PARAMETERS, Array, to_raw

# Response forms:
JSON = "kserve_v2.json"  # a JSON document, then a part for each binary output
PROTO = "kserve_v2.proto"  # a serialized ModelInferResponse with raw contents
GENERATED = "kserve_v2.generated"  # response of `generate`: {"OUTPUT": element or list, "model_name": ...}
WITH_LATER_ID = (JSON, PROTO)  # forms of responses

_json = msgspec.json.encode
_RAW_TAG = b"\x32"  # raw_output_contents: field 6, length-delimited
_ID_TAG = b"\x1a"  # ModelInferResponse.id: field 3, length-delimited


class RequestedOutput(NamedTuple):
    """An output tensor that the client requests, and the encoding in which it is sent."""

    name: str
    binary: bool  # sent as raw bytes behind the JSON document
    classes: int  # number of the best classes of each row to send; 0 sends the tensor
    room: int | None = None  # bytes reserved in shared memory; None: the output is sent


class ResponseOptions(NamedTuple):
    """Options that the front process sends to the encoder of a response, such as the requested outputs."""

    model: str
    request_id: str
    binary: bool = False  # whether outputs that the request does not list are sent as raw bytes
    outputs: Sequence[Sequence[Any]] | None = (
        None  # fields of each RequestedOutput; None requests all outputs
    )
    by_rows: bool = False  # the first axis of an output is the batch
    parameters: Mapping[str, Any] = MappingProxyType({})  # parameters of the response


class Tensor(NamedTuple):
    """An output tensor to encode in a response."""

    name: str
    datatype: str
    array: Array
    binary: bool  # sent as raw bytes behind the JSON document
    room: int | None = None  # bytes reserved in shared memory; None: the output is sent


def list_outputs(response_options: Sequence[Any]) -> list[str]:
    """Return the names of the outputs that the client requests; an empty list if it requests all outputs."""
    return [RequestedOutput(*output).name for output in ResponseOptions(*response_options).outputs or ()]


def render_json(
    output: Mapping[str, Any], response_options: Sequence[Any], version: str, declared: Sequence[TensorSpec]
) -> list[Part]:
    """Encode the outputs of an inference as a KServe v2 response over HTTP: JSON, then raw bytes.

    Returns the JSON document, followed by a part for each output that is sent as raw bytes. The last parts
    are the outputs in shared memory, in the requested order. Raises UnprintableAnswer (HTTP 500) for a value
    that is no tensor. Raises KServeRefusal for an output that does not exist, can't be sent in JSON or does
    not fit into its shared memory.
    """
    options = ResponseOptions(*response_options)
    tensors = list(_select_outputs(output, options, declared))
    document = _as_json(tensors, options, version, _response_parameters(output, options))
    return document + _for_shared_memory(tensors, options)


def render_message(
    output: Mapping[str, Any], response_options: Sequence[Any], version: str, declared: Sequence[TensorSpec]
) -> list[Part]:
    """Encode the outputs of an inference as a serialized ModelInferResponse, for gRPC.

    Parts for shared memory follow, as in `render_json`. Raises the same errors as `render_json`.
    """
    options = ResponseOptions(*response_options)
    tensors = list(_select_outputs(output, options, declared))
    message = _as_message(tensors, options, version, _response_parameters(output, options))
    return message + _for_shared_memory(tensors, options)


def render_generated(
    output: Mapping[str, Any], response_options: Sequence[Any], version: str, declared: Sequence[TensorSpec]
) -> list[Part]:
    """Encode the outputs of an inference as the JSON response of Triton's `generate`.

    Each output becomes a flat list; an output with one element becomes that element. Raises errors like
    `render_json`.
    """
    options = ResponseOptions(*response_options)
    fields = {**_response_parameters(output, options), "model_name": options.model, "model_version": version}
    if options.request_id:
        fields["id"] = options.request_id
    members = {name: _json(value) for name, value in fields.items()}
    for tensor in _select_outputs(output, options, declared):
        data = _json_data(tensor)
        members[tensor.name] = data[1:-1] if tensor.array.size == 1 else data
    return [b"{%b}" % b",".join(b"%b:%b" % (_json(name), value) for name, value in sorted(members.items()))]


def _response_parameters(output: Mapping[str, Any], options: ResponseOptions) -> Mapping[str, Any]:
    """Return the parameters of the response, from the response options and from the model's output."""
    model_parameters = getattr(output, "parameters", None)
    return {**options.parameters, **model_parameters} if model_parameters else options.parameters


def _select_outputs(
    output: Mapping[str, Any], options: ResponseOptions, specs: Sequence[TensorSpec]
) -> Iterator[Tensor]:
    """Yield the tensors to send: the declared outputs, or all outputs of a model that declares none.

    If the client lists outputs, yields only these. Raises KServeRefusal for a listed output that does not
    exist.
    """
    declared = {spec.name: spec for spec in specs}
    requested = (
        None
        if options.outputs is None
        else {name: RequestedOutput(name, *form) for name, *form in options.outputs}
    )
    for name in requested or ():
        if name not in output and name not in declared:
            raise KServeRefusal(f"unexpected inference output {name!r} for model {options.model!r}")
    for name, value in output.items():
        if (requested is not None and name not in requested) or (declared and name not in declared):
            continue
        spec = declared.get(name)
        datatype, array = convert_output(str(name), value, spec)
        binary, room = options.binary, None
        if requested is not None:
            form = requested[name]
            binary, room = form.binary, form.room
            if form.classes:
                labels = spec.labels if spec is not None else ()
                array = classification(array, datatype, form.classes, labels, options.by_rows)
                datatype = BYTES
        yield Tensor(str(name), datatype, array, binary, room)


def classification(array: Array, datatype: str, classes: int, labels: Sequence[str], by_rows: bool) -> Array:
    """Return the best classes of each row as texts "score:index:label", or "score:index" without a label.

    classes: number of texts for each row. labels: labels in the order of the class index. by_rows: whether
    the first axis is the batch. The array has the shape [rows, classes], or [classes] if `by_rows` is not
    set. Raises KServeRefusal (HTTP 400) for a datatype that can't be sorted, and for rows that are too long.
    """
    if datatype not in _CLASSIFIED:
        raise KServeRefusal(f"class result not available for output due to unsupported type '{datatype}'")
    rows = array.reshape(array.shape[0], -1) if by_rows and array.ndim else array.reshape(1, -1)
    if rows.shape[1] > MAX_CLASSES:
        raise KServeRefusal(
            f"classification output tensor too large: {rows.shape[1]} elements of a row, {MAX_CLASSES} are "
            "the limit"
        )
    best = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :classes]
    texts = [
        [_class_text(row[at], int(at), labels) for at in order] for row, order in zip(rows, best, strict=True)
    ]
    result = np.array(texts, object).reshape(best.shape)
    return result if by_rows else result[0]


MAX_CLASSES = 1_000_000  # elements of a row to classify, as in Triton: all of them are sorted
_CLASSIFIED = frozenset(
    f"{kind}{bits}"
    for kind, sizes in (("INT", (8, 16, 32, 64)), ("UINT", (8, 16, 32, 64)), ("FP", (32, 64)))
    for bits in sizes
)


def _class_text(score: Any, index: int, labels: Sequence[str]) -> str:
    score_text = f"{score:d}" if isinstance(score, np.integer) else f"{float(score):f}"
    return f"{score_text}:{index}:{labels[index]}" if index < len(labels) else f"{score_text}:{index}"


def _as_json(
    tensors: Iterable[Tensor], options: ResponseOptions, version: str, parameters: Mapping[str, Any]
) -> list[Part]:
    parts: list[Part] = []
    outputs = []
    for tensor in tensors:
        head = b'{"name":%b,"datatype":"%b","shape":%b,' % (
            _json(tensor.name),
            tensor.datatype.encode(),
            _json(list(tensor.array.shape)),
        )
        if tensor.room is not None:
            outputs.append(head[:-1] + b"}")
        elif tensor.binary:
            parts.append(_raw(tensor))
            outputs.append(head + b'"parameters":{"binary_data_size":%d}}' % len(parts[-1]))
        else:
            outputs.append(head + b'"data":%b}' % _json_data(tensor))
    request_id = b'{"id":%b,' % _json(options.request_id) if options.request_id else b"{"
    document = b'%b"model_name":%b,"model_version":%b,%b"outputs":[%b]}' % (
        request_id,
        _json(options.model),
        _json(version),
        b'"parameters":%b,' % _json(parameters) if parameters else b"",
        b",".join(outputs),
    )
    return [document, *parts]


def _json_data(tensor: Tensor) -> bytes:
    if tensor.datatype in RAW_ALONE:
        raise KServeRefusal(
            f"sending {tensor.datatype} data via JSON is not supported. Please use the binary data format "
            f"for output {tensor.name}"
        )
    elements = tensor.array.ravel().tolist()
    if tensor.datatype == BYTES:
        try:
            elements = [e.decode() if isinstance(e, bytes) else e for e in elements]
        except UnicodeDecodeError:
            raise KServeRefusal(
                f"output {tensor.name!r} holds bytes that are no UTF-8 text: ask for it with binary_data"
            ) from None
        if not all(isinstance(element, str) for element in elements):
            raise no_tensor(tensor.name, tensor.array)
    elif tensor.array.dtype.kind == "f" and not np.isfinite(tensor.array).all():
        return json.dumps(elements, separators=(",", ":")).encode()  # NaN and Infinity, as Triton writes them
    return _json(elements)


def _for_shared_memory(tensors: Iterable[Tensor], options: ResponseOptions) -> list[Part]:
    """Return the raw bytes of each output for shared memory, in the requested order.

    A missing output becomes empty bytes. Raises KServeRefusal for an output that is too large for its shared
    memory.
    """
    requested = [RequestedOutput(*how) for how in options.outputs or ()]
    parts: dict[str, Part] = {output.name: b"" for output in requested if output.room is not None}
    for tensor in tensors:
        if tensor.room is None:
            continue
        raw = parts[tensor.name] = _raw(tensor)
        if len(raw) > tensor.room:
            raise KServeRefusal(
                f"shared memory size specified with the request for output '{tensor.name}' ({tensor.room} "
                f"bytes) should be at least {len(raw)} bytes to hold the results",
                "INTERNAL",
            )
    return list(parts.values())


def _raw(tensor: Tensor) -> bytes:
    try:
        return to_raw(tensor.array)
    except ValueError as exc:
        raise UnprintableAnswer(f"output {tensor.name!r} {exc}") from None


def _as_message(
    tensors: Iterable[Tensor], options: ResponseOptions, version: str, parameters: Mapping[str, Any]
) -> list[Part]:
    """Serialize a ModelInferResponse. The raw contents are appended, which avoids protobuf's copies."""
    message = ModelInferResponse(model_name=options.model, model_version=version, id=options.request_id)
    for name, value in parameters.items():
        setattr(message.parameters[name], PARAMETERS[type(value)], value)
    raws: list[bytes] = []
    for tensor in tensors:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.array.shape)
        raw = _raw(tensor) if tensor.room is None else b""
        raws += [_RAW_TAG, encode_varint(len(raw)), raw]
    return [b"".join([message.SerializeToString(), *raws])]


class RequestIdFinish:
    """Finish hook of a request: adds its id to a response that a worker has encoded without an id.

    Responses without ids can be shared by the response cache.
    """

    is_cacheable = True

    def __init__(self, request_id: str, form: str) -> None:
        """Store the request's id. form: response format, one of `WITH_LATER_ID`."""
        self._id = request_id
        self._form = form

    def begin(self) -> None:
        """Do nothing, because this hook needs no preparation."""

    def end(self, answer: Any) -> Any:
        """Return the response with the id added. Return errors and None (the client has left) unchanged."""
        if not isinstance(answer, list) or not answer:
            return answer
        document, *tensors = answer
        if self._form == JSON:
            return [b'{"id":%b,%b' % (msgspec.json.encode(self._id), bytes(document)[1:]), *tensors]
        request_id = self._id.encode()
        return [b"".join([document, _ID_TAG, encode_varint(len(request_id)), request_id]), *tensors]
