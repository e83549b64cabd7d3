"""An inference request over gRPC: a ModelInferRequest with raw or typed contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from client.protos.kserve_v2_pb2 import InferParameter, InferTensorContents, ModelInferRequest
from pipeline.config.config_file import Limits
from pipeline.dialects.kserve.datatypes import BYTES, CONTENTS, from_contents
from pipeline.dialects.kserve.models import KServeModel
from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.dialects.kserve.unread import LENGTH, Written
from pipeline.dialects.kserve_v2.asked import SEQUENCE_FLAGS, Asked, Given
from pipeline.dialects.kserve_v2.shared_memory import FindSpan, Span
from pipeline.dialects.kserve_v2.wish import WantedOutput
from pipeline.dialects.message_fields import check_nested, split
from pipeline.messages.values import Part
from pipeline.models.dtypes import BY_DATATYPE

_KINDS = {  # of the parameters that the protocol gives a meaning
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param",),
    "sequence_id": ("int64_param", "string_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "triton_enable_empty_final_response": ("bool_param",),
}
_TYPE_OF = {  # of typed contents, as Triton names them
    "bool_contents": "BOOL",
    "int_contents": "INT32",
    "int64_contents": "INT64",
    "uint_contents": "UINT32",
    "uint64_contents": "UINT64",
    "fp32_contents": "FP32",
    "fp64_contents": "FP64",
    "bytes_contents": "BYTES",
}
_SHARED_MEMORY = {  # parameters of a tensor that lies there, with the fields of their values
    "shared_memory_region": "string_param",
    "shared_memory_offset": "int64_param",
    "shared_memory_byte_size": "int64_param",
}
_Tensor = ModelInferRequest.InferInputTensor
_RAWS = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_INPUTS = ModelInferRequest.INPUTS_FIELD_NUMBER
_OUTPUTS = ModelInferRequest.OUTPUTS_FIELD_NUMBER
_SHAPE = _Tensor.SHAPE_FIELD_NUMBER
_CONTENTS = _Tensor.CONTENTS_FIELD_NUMBER


class InferMessage(NamedTuple):
    """A ModelInferRequest, and beside it the raw contents of its inputs."""

    fields: ModelInferRequest
    raws: Sequence[Part]  # its raw_input_contents; of a large message views of what was received
    contents: Mapping[int, Part] = {}  # large typed contents, which the worker parses, by the input's number


def infer_message(data: bytes, limits: Limits) -> InferMessage:
    """Parse a serialized ModelInferRequest. Raises KServeRefusal for other bytes, and TooLarge."""
    rest, raws = split(data, _RAWS, limits)
    rest, contents = check_nested(rest, _INPUTS, limits, cut=_CONTENTS, short=_SHAPE)
    check_nested(rest, _OUTPUTS, limits)
    try:
        fields = ModelInferRequest.FromString(rest)
    except DecodeError:
        raise KServeRefusal("Unable to parse request", "INTERNAL") from None
    return InferMessage(fields, raws or fields.raw_input_contents, contents)


def parse_infer(asked_for: InferMessage, model: KServeModel, find: FindSpan) -> Asked:
    """Read the message's inputs, outputs and parameters. find: in shared memory. Raises KServeRefusal."""
    message, raws, contents = asked_for
    asked = Asked(message.id)
    if message.parameters:
        _take_parameters(asked, message)
    number = 0  # of the inputs that are not in shared memory
    for place, tensor in enumerate(message.inputs):
        if tensor.parameters and (span := _span(tensor, find)) is not None:
            if place in contents or tensor.contents.ListFields():
                raise KServeRefusal(
                    "unexpected 'content' provided when using shared memory for input tensor "
                    f"'{tensor.name}' for model '{model.name}'"
                )
            asked.give_shared(tensor.name, tensor.datatype, list(tensor.shape), span)
            continue
        if not raws and place in contents:
            shape = list(tensor.shape)
            given = Given(tensor.name, tensor.datatype, shape, contents[place], Written.CONTENTS)
        elif not raws:
            given = _typed(tensor, model)
        elif place in contents or (tensor.HasField("contents") and tensor.contents.ListFields()):
            raise KServeRefusal(
                "contents field must not be specified when using raw_input_contents for "
                f"'{tensor.name}' for model '{model.name}'"
            )
        elif number >= len(raws):
            raise _without_data(tensor, model)
        else:
            given = Given(tensor.name, tensor.datatype, tensor.shape[:], raws[number], Written.RAW)
        number += 1
        asked.give(given)
    # More raw contents than inputs are passed over, as Triton does.
    for output in message.outputs:
        wanted = _wanted(output)
        if wanted.classes and "shared_memory_region" in output.parameters:
            raise KServeRefusal("output can't set both 'shared_memory_region' and 'classification'")
        span = _span(output, find) if output.parameters else None
        asked.want(wanted, span)
    return asked


def _take_parameters(asked: Asked, message: ModelInferRequest) -> None:
    for name, parameter in message.parameters.items():
        field = parameter.WhichOneof("parameter_choice")
        if name in _KINDS and field not in _KINDS[name]:
            raise _wrong_type(name, " or ".join(_KINDS[name]))
        if name == "priority":
            asked.priority = _value(parameter)
            if asked.priority < 0:
                raise KServeRefusal("invalid value for 'priority', expected value >= 0.")
        elif name == "timeout":
            asked.timeout_us = _value(parameter) % (1 << 64)
        elif name == "sequence_id":
            asked.correlation_id = _value(parameter)
        elif name in SEQUENCE_FLAGS:
            asked.flags |= SEQUENCE_FLAGS[name] * _value(parameter)
        elif field is None and not name.startswith("triton_"):
            raise _wrong_type(name, "int64_param, bool_param, or string_param")
        else:
            asked.take_parameter(name, _value(parameter))


def _value(parameter: InferParameter) -> Any:
    field = parameter.WhichOneof("parameter_choice")
    return None if field is None else getattr(parameter, field)


def _wrong_type(name: str, expected: str) -> KServeRefusal:
    return KServeRefusal(f"invalid value type for '{name}' parameter, expected {expected}.")


def _span(tensor: _Tensor | ModelInferRequest.InferRequestedOutputTensor, find: FindSpan) -> Span | None:
    """Where the tensor lies in shared memory; None where it does not. Raises KServeRefusal."""
    parameters = tensor.parameters
    shared = "shared_memory_region" in parameters
    values: dict[str, Any] = {}
    for name, kind in _SHARED_MEMORY.items():
        if name not in parameters:
            continue
        if not shared:
            raise KServeRefusal(
                f"'{name}' can not be specified without 'shared_memory_region' parameter for tensor "
                f"'{tensor.name}'"
            )
        if parameters[name].WhichOneof("parameter_choice") != kind:
            raise KServeRefusal(
                f"invalid value type for '{name}' parameter for tensor '{tensor.name}', expected {kind}."
            )
        values[name] = getattr(parameters[name], kind)
    if not shared:
        return None
    if "shared_memory_byte_size" not in values:
        raise KServeRefusal(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for "
            f"tensor '{tensor.name}'"
        )
    return find(
        values["shared_memory_region"],
        values.get("shared_memory_offset", 0),
        values["shared_memory_byte_size"],
    )


def _typed(tensor: _Tensor, model: KServeModel) -> Given:
    fields = [descriptor.name for descriptor, _ in tensor.contents.ListFields()]
    shape = list(tensor.shape)
    if not fields:
        if 0 in shape and tensor.datatype in BY_DATATYPE:
            return Given(tensor.name, tensor.datatype, shape, b"", Written.RAW)
        raise _without_data(tensor, model)
    if fields != [CONTENTS.get(tensor.datatype)]:
        raise KServeRefusal(
            f"unexpected explicit tensor data for input tensor '{tensor.name}' for model '{model.name}' of "
            f"type '{_TYPE_OF[fields[0]]}', expected datatype "
            f"'{tensor.datatype if tensor.datatype in BY_DATATYPE else '<invalid>'}'"
        )
    return Given(tensor.name, tensor.datatype, shape, _raw(tensor.contents, tensor.datatype), Written.RAW)


def _raw(contents: InferTensorContents, datatype: str) -> bytes | memoryview:
    if datatype == BYTES:
        return b"".join(part for text in contents.bytes_contents for part in (LENGTH.pack(len(text)), text))
    elements = getattr(contents, CONTENTS[datatype])
    try:
        return from_contents(contents, datatype, [len(elements)]).tobytes()
    except ValueError as exc:
        raise KServeRefusal(str(exc)) from None


def _without_data(tensor: _Tensor, model: KServeModel) -> KServeRefusal:
    return KServeRefusal(
        f"unable to find data for input tensor '{tensor.name}' for model '{model.name}' in request."
    )


def _wanted(output: ModelInferRequest.InferRequestedOutputTensor) -> WantedOutput:
    classes = 0
    if "classification" in output.parameters:
        parameter = output.parameters["classification"]
        if parameter.WhichOneof("parameter_choice") != "int64_param":
            raise KServeRefusal("invalid value type for 'classification' parameter, expected int64_param")
        classes = parameter.int64_param
        if classes <= 0:
            raise KServeRefusal("invalid value for 'classification' parameter, expected >= 0")
    return WantedOutput(output.name, True, classes)
