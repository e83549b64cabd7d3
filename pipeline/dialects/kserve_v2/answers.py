"""The answer of a KServe v2 request, made in the worker: an Op's output as tensors in the form asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from client.protos.kserve_v2_pb2 import ModelInferResponse
from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.dialects.kserve.unread import BYTES, PARAMETERS, Array, convert_output, no_tensor, to_raw
from pipeline.dialects.kserve_v2.wish import WantedOutput, Wish
from pipeline.dialects.message_fields import varint
from pipeline.errors import UnprintableAnswer
from pipeline.messages.values import Part
from pipeline.models.dtypes import RAW_ALONE
from pipeline.models.tensor_spec import TensorSpec

_json = msgspec.json.encode
_RAW_TAG = b"\x32"  # of raw_output_contents: field 6, length-delimited


class Tensor(NamedTuple):
    name: str
    datatype: str
    array: Array
    binary: bool
    room: int | None = None


def render_json(
    output: Mapping[str, Any], wish: Sequence[Any], version: str, declared: Sequence[TensorSpec]
) -> list[Part]:
    """The complete answer, and behind it a part for each output that goes to shared memory, as asked for.

    Raises UnprintableAnswer for a value that is no tensor, KServeRefusal for an output that is not there,
    that can't be sent in this form or that finds no room.
    """
    asked = Wish(*wish)
    tensors = list(_wanted(output, asked, declared))
    return _as_json(tensors, asked, version, _said(output, asked)) + _for_shared_memory(tensors, asked)


def render_message(
    output: Mapping[str, Any], wish: Sequence[Any], version: str, declared: Sequence[TensorSpec]
) -> list[Part]:
    """The complete answer as a serialized ModelInferResponse; else as `render_json`."""
    asked = Wish(*wish)
    tensors = list(_wanted(output, asked, declared))
    return _as_message(tensors, asked, version, _said(output, asked)) + _for_shared_memory(tensors, asked)


def render_generated(
    output: Mapping[str, Any], wish: Sequence[Any], version: str, declared: Sequence[TensorSpec]
) -> list[Part]:
    """An object with each output as a flat list, or as its only element. Raises as `render_json` does."""
    asked = Wish(*wish)
    told = {**_said(output, asked), "model_name": asked.model, "model_version": version}
    if asked.request_id:
        told["id"] = asked.request_id
    members = {name: _json(value) for name, value in told.items()}
    for tensor in _wanted(output, asked, declared):
        data = _data(tensor)
        members[tensor.name] = data[1:-1] if tensor.array.size == 1 else data
    return [b"{%b}" % b",".join(b"%b:%b" % (_json(name), value) for name, value in sorted(members.items()))]


def _said(output: Mapping[str, Any], asked: Wish) -> Mapping[str, Any]:
    """The parameters of the answer: what is told of its request, and what its model has added."""
    own = getattr(output, "parameters", None)
    return {**asked.parameters, **own} if own else asked.parameters


def _wanted(output: Mapping[str, Any], wish: Wish, specs: Sequence[TensorSpec]) -> Iterator[Tensor]:
    """The tensors that are asked for: of a declared model those that it declares, else all of the output."""
    declared = {spec.name: spec for spec in specs}
    wanted = None if wish.outputs is None else {name: WantedOutput(name, *how) for name, *how in wish.outputs}
    for name in wanted or ():
        if name not in output and name not in declared:
            raise KServeRefusal(f"unexpected inference output {name!r} for model {wish.model!r}")
    for name, value in output.items():
        if (wanted is not None and name not in wanted) or (declared and name not in declared):
            continue
        spec = declared.get(name)
        datatype, array = convert_output(str(name), value, spec)
        binary, room = wish.binary, None
        if wanted is not None:
            how = wanted[name]
            binary, room = how.binary, how.room
            if how.classes:
                labels = spec.labels if spec is not None else ()
                datatype, array = BYTES, classification(array, how.classes, labels, wish.by_rows)
        yield Tensor(str(name), datatype, array, binary, room)


def classification(array: Array, classes: int, labels: Sequence[str], by_rows: bool) -> Array:
    """The best classes of each row as "score:index" or "score:index:label": objects [rows, k] or [k]."""
    rows = array.reshape(array.shape[0], -1) if by_rows and array.ndim else array.reshape(1, -1)
    if array.dtype.kind not in "iufb":
        raise KServeRefusal("class result not available for output due to unsupported type", "UNIMPLEMENTED")
    best = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :classes]
    texts = [
        [_class(row[at], int(at), labels) for at in order] for row, order in zip(rows, best, strict=True)
    ]
    result = np.array(texts, object).reshape(best.shape)
    return result if by_rows else result[0]


def _class(score: Any, index: int, labels: Sequence[str]) -> str:
    told = f"{score:d}" if isinstance(score, np.integer) else f"{float(score):f}"
    return f"{told}:{index}:{labels[index]}" if index < len(labels) else f"{told}:{index}"


def _as_json(
    tensors: Iterable[Tensor], wish: Wish, version: str, parameters: Mapping[str, Any]
) -> list[Part]:
    parts: list[Part] = []
    outputs = []
    for tensor in tensors:
        told = b'{"name":%b,"datatype":"%b","shape":%b,' % (
            _json(tensor.name),
            tensor.datatype.encode(),
            _json(list(tensor.array.shape)),
        )
        if tensor.room is not None:
            outputs.append(told[:-1] + b"}")
        elif tensor.binary:
            parts.append(_raw(tensor))
            outputs.append(told + b'"parameters":{"binary_data_size":%d}}' % len(parts[-1]))
        else:
            outputs.append(told + b'"data":%b}' % _data(tensor))
    head = b'{"id":%b,' % _json(wish.request_id) if wish.request_id else b"{"
    document = b'%b"model_name":%b,"model_version":%b,%b"outputs":[%b]}' % (
        head,
        _json(wish.model),
        _json(version),
        b'"parameters":%b,' % _json(parameters) if parameters else b"",
        b",".join(outputs),
    )
    return [document, *parts]


def _data(tensor: Tensor) -> bytes:
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


def _for_shared_memory(tensors: Iterable[Tensor], wish: Wish) -> list[Part]:
    """The bytes of outputs for shared memory, in the order asked for; empty where the model gave none."""
    wanted = [WantedOutput(*how) for how in wish.outputs or ()]
    parts: dict[str, Part] = {one.name: b"" for one in wanted if one.room is not None}
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
    tensors: Iterable[Tensor], wish: Wish, version: str, parameters: Mapping[str, Any]
) -> list[Part]:
    """The serialized fields, the raw contents behind the others without protobuf's copies."""
    message = ModelInferResponse(model_name=wish.model, model_version=version, id=wish.request_id)
    for name, value in parameters.items():
        setattr(message.parameters[name], PARAMETERS[type(value)], value)
    raws: list[bytes] = []
    for tensor in tensors:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.array.shape)
        raw = _raw(tensor) if tensor.room is None else b""
        raws += [_RAW_TAG, varint(len(raw)), raw]
    return [b"".join([message.SerializeToString(), *raws])]
