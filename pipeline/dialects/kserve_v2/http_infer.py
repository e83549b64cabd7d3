"""An inference request over HTTP: a JSON document, and behind it the raw bytes of inputs.

`data` stays JSON text: the worker decodes it. A body that the fast decoder rejects is parsed again, slowly,
for the error message.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from pipeline.config.config_file import Limits
from pipeline.dialects.json_nesting import check_depth
from pipeline.dialects.json_outline import Outline
from pipeline.dialects.kserve import json_fields
from pipeline.dialects.kserve.models import KServeModel
from pipeline.dialects.kserve.refusals import KServeRefusal, of_request
from pipeline.dialects.kserve.unread import Written
from pipeline.dialects.kserve_v2.infer_request import (
    SEQUENCE_FLAGS,
    InferRequest,
    InputTensor,
    refuse_in_json,
)
from pipeline.dialects.kserve_v2.response_options import RequestedOutput
from pipeline.dialects.kserve_v2.shared_memory import FindSpan, Span
from pipeline.models.dtypes import BY_DATATYPE

_NO_DATA = msgspec.Raw()


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: msgspec.Raw = _NO_DATA  # a union with None would not be taken
    given_parameters: dict[str, Any] | None = msgspec.field(default=None, name="parameters")

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.given_parameters or {}


class _Document(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[dict[str, Any]] | None = None


_decoder = msgspec.json.Decoder(_Document)


def parse_infer(
    body: bytes,
    header_length: int | None,
    model: KServeModel,
    limits: Limits,
    find: FindSpan,
    outline: Outline | None = None,
) -> InferRequest:
    """Read a body of JSON and the raw bytes behind it.

    header_length: bytes of the JSON document; None for all of the body. find: in shared memory. outline: of
    a large document. Raises KServeRefusal, and TooLarge for a document that nests deeper than
    limits.json_depth.
    """
    end = len(body) if header_length is None else header_length
    binary = memoryview(body)[end:]
    if outline is None:
        outline = Outline(body[:end])
        if body.count(b"[", 0, end) + body.count(b"{", 0, end) > limits.json_depth:  # a bracket for a level
            check_depth(outline.text, limits.json_depth)
    document = _parse_document(outline.text)
    _check_counts(document, limits)
    infer_request = InferRequest(document.id)
    _take_parameters(infer_request, document.parameters)
    at = 0
    for tensor in document.inputs:
        _check_source(tensor)
        if "shared_memory_region" in tensor.parameters:
            infer_request.add_shared_input(
                tensor.name, tensor.datatype, tensor.shape, _span(tensor.parameters, find)
            )
            continue
        size = _binary_size(tensor)
        if size is None:
            refuse_in_json(tensor.name, tensor.datatype)
            data = outline.restore(tensor.data)
            infer_request.add_input(
                InputTensor(tensor.name, tensor.datatype, tensor.shape, data, Written.JSON)
            )
            continue
        if size > len(binary) - at:
            raise KServeRefusal(
                f"unexpected size for input '{tensor.name}', expecting {size - len(binary) + at} additional "
                f"bytes for model '{model.name}'"
            )
        raw = InputTensor(tensor.name, tensor.datatype, tensor.shape, binary[at : at + size], Written.RAW)
        infer_request.add_input(raw)
        at += size
    if at != len(binary):
        raise KServeRefusal(f"unexpected additional input data for model '{model.name}'")
    for output in document.outputs or ():
        parameters = json_fields.parameters_of_tensor(output) if isinstance(output, dict) else {}
        shared = "shared_memory_region" in parameters
        requested = _requested_output(output)
        infer_request.add_output(requested, _output_span(requested, parameters, find) if shared else None)
    return infer_request


def parse_raw(body: bytes, model: KServeModel) -> InferRequest:
    """The whole body is the one input's raw bytes; its shape follows from the model. Raises KServeRefusal."""
    specs = model.signature.inputs
    if len(specs) != 1:
        raise of_request(
            "",
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(specs)} inputs in "
            f"'{model.name}' model configuration",
        )
    (spec,) = specs
    batched = model.signature.max_batch_size > 0
    dims = list(spec.shape[1:] if batched else spec.shape)
    if spec.datatype == "BYTES":
        if dims not in ([1], []):
            raise of_request(
                "", f"For BYTE datatype raw input '{spec.name}', the model must have input shape [1]"
            )
        data = len(body).to_bytes(4, "little") + body
    else:
        data = body
        if dims.count(-1) > 1:
            raise of_request(
                "",
                f"The shape of the raw input '{spec.name}' can not be deduced because there are more than "
                "one variable-sized dimension",
            )
        fixed = (
            math.prod(length for length in dims if length != -1) * BY_DATATYPE[spec.datatype].numpy.itemsize
        )
        dims = [len(body) // max(1, fixed) if length == -1 else length for length in dims]
    shape = [1, *dims] if batched else dims
    infer_request = InferRequest(binary=True)
    infer_request.inputs[spec.name] = InputTensor(spec.name, spec.datatype, shape, data, Written.RAW)
    return infer_request


def _parse_document(document: bytes) -> _Document:
    try:
        decoded = _decoder.decode(document)
        if all(length >= 0 for tensor in decoded.inputs for length in tensor.shape):
            return decoded
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    return _read_slowly(json_fields.parse(document))


def _read_slowly(document: Any) -> _Document:
    read = _Document([])
    inputs = json_fields.array(document, "inputs")
    if "id" in document:
        read.id = json_fields.text(document, "id")
    read.parameters = dict(json_fields.get_parameters(document))
    for tensor in inputs:
        if not isinstance(tensor, dict):
            raise KServeRefusal(
                f"Unable to parse 'inputs': one is {json.dumps(tensor)[:40]}, and no object with name, "
                "shape, datatype and data"
            )
        name = json_fields.text(tensor, "name")
        shape = [json_fields.unsigned(dim, "shape") for dim in json_fields.array(tensor, "shape")]
        datatype = json_fields.text(tensor, "datatype")
        data = _NO_DATA
        if "data" in tensor:
            data = msgspec.Raw(json.dumps(json_fields.array(tensor, "data")).encode())
        read.inputs.append(
            _Input(name, shape, datatype, data, dict(json_fields.parameters_of_tensor(tensor)))
        )
    if "outputs" in document:
        read.outputs = json_fields.array(document, "outputs")
    return read


def _check_counts(document: _Document, limits: Limits) -> None:
    counts = {
        "inputs": len(document.inputs),
        "outputs": len(document.outputs or ()),
        "parameters": len(document.parameters) + sum(len(tensor.parameters) for tensor in document.inputs),
    }
    for name, count in counts.items():
        if count > limits.tensors:
            raise of_request(document.id, f"{count} {name} were given; limits.tensors is {limits.tensors}")


def _take_parameters(infer_request: InferRequest, parameters: Mapping[str, Any]) -> None:
    for name, value in parameters.items():
        if name == "priority":
            infer_request.priority = json_fields.unsigned(value, name)
        elif name == "timeout":
            infer_request.timeout_us = json_fields.unsigned(value, name)
        elif name == "sequence_id":
            if type(value) is not str and (type(value) is not int or value not in range(1 << 64)):
                raise json_fields.unparsed(name, "attempt to access JSON non-string as string")
            infer_request.correlation_id = value
        elif name in SEQUENCE_FLAGS:
            infer_request.flags |= SEQUENCE_FLAGS[name] * json_fields.boolean(value, name)
        elif name == "binary_data_output":
            infer_request.binary = json_fields.boolean(value, name)
        else:
            infer_request.add_parameter(name, value)


def _check_source(tensor: _Input) -> None:
    """Raises KServeRefusal for data in two places or in none, and for an unknown datatype."""
    sources = ["data"] if len(memoryview(tensor.data)) else []
    sources += [name for name in ("binary_data_size", "shared_memory_region") if name in tensor.parameters]
    if len(sources) != 1:
        found_sources = f"set {' '.join(map(repr, sources))}" if sources else "no field is set"
        raise KServeRefusal(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            f"'shared_memory_region' in 'parameters'. But {found_sources}"
        )
    if tensor.datatype not in BY_DATATYPE:
        raise KServeRefusal(f"invalid datatype for input {tensor.name}")


def _binary_size(tensor: _Input) -> int | None:
    """Bytes of this input behind the document; None where its data is in it. Raises KServeRefusal."""
    if "binary_data_size" in tensor.parameters:
        return json_fields.unsigned(tensor.parameters["binary_data_size"], "binary_data_size")
    return None


def _span(parameters: Mapping[str, Any], find: FindSpan) -> Span:
    region = json_fields.text(parameters, "shared_memory_region")
    names = "shared_memory_offset", "shared_memory_byte_size"
    offset, size = (json_fields.unsigned(parameters.get(name, 0), name) for name in names)
    return find(region, offset, size)


def _output_span(requested: RequestedOutput, parameters: Mapping[str, Any], find: FindSpan) -> Span:
    for name, is_set in (
        ("classification", "classification" in parameters),
        ("binary_data", requested.binary),
    ):
        if is_set:
            raise KServeRefusal(f"Output can't set both 'shared_memory_region' and '{name}'")
    return _span(parameters, find)


def _requested_output(output: Mapping[str, Any]) -> RequestedOutput:
    """An output that the request lists; its `binary_data_output` holds for those that it does not list."""
    name = json_fields.text(output, "name")
    parameters = json_fields.parameters_of_tensor(output)
    classes, binary = 0, False
    if "classification" in parameters:
        classes = json_fields.unsigned(parameters["classification"], "classification", verb="set")
    if "binary_data" in parameters:
        binary = json_fields.boolean(parameters["binary_data"], "binary_data")
    return RequestedOutput(name, binary, classes)
