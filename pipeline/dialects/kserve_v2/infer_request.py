"""FRONT PROCESS: inference requests of KServe v2: parses HTTP bodies, checks inputs against the model.

The result is the request for the scheduler. The `data` of a tensor stays JSON text, which the worker decodes.
A body that the fast decoder rejects is parsed again, slowly, for the error message. `rpc_methods.py` parses
the messages of gRPC.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from pipeline.api.header_patterns import compile_pattern
from pipeline.api.request_options import RequestOptions
from pipeline.config.config_file import Limits
from pipeline.dialects.json_outline import Outline, check_depth
from pipeline.dialects.kserve import json_fields
from pipeline.dialects.kserve.json_fields import check_parameter, replace_surrogates
from pipeline.dialects.kserve.models import KServeModel
from pipeline.dialects.kserve.refusals import KServeRefusal, request_refusal
from pipeline.dialects.kserve.unread import UnreadTensor, Written, as_message, check_texts
from pipeline.dialects.kserve_v2.answers import (
    WITH_LATER_ID,
    RequestedOutput,
    RequestIdFinish,
    ResponseOptions,
)
from pipeline.dialects.sequence_keys import FLAG_KEYS
from pipeline.dialects.triton_extensions.shared_memory import FindSpan, SharedMemoryOutputs, Span
from pipeline.front.dag_run import Request
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.messages.frames import Part
from pipeline.models.tensor_spec import BY_DATATYPE, DTYPES, RAW_ALONE, Signature, TensorSpec

_ALLOWED = "triton_enable_empty_final_response"
_NOT_FOR_HOOKS = (_ALLOWED, "sequence_id", "sequence_start", "sequence_end")
_NUMBERS = {  # little-endian dtypes by datatype
    dtype.datatype: dtype.numpy.newbyteorder("<") for dtype in DTYPES if dtype.name != "string"
}
_MAX_LENGTH = (1 << 63) - 1  # shapes have int64 lengths
_HINT = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended"
    " to each input shape. If you want to specify the full shape including the batch dim in your input dims"
    " config, try setting max_batch_size to zero. See the model configuration docs for more info on"
    " max_batch_size."
)

_NO_DATA = msgspec.Raw()
Headers = Iterable[tuple[str | bytes, str | bytes]]


class InputTensor(msgspec.Struct, eq=False):
    """An input tensor of a request. Its elements are not decoded, or are in shared memory."""

    name: str
    datatype: str
    shape: list[int]
    data: Part | Span  # the elements, or their place in shared memory
    written: Written  # encoding of the elements


class InferRequest(msgspec.Struct, eq=False):
    """A KServe v2 inference request, parsed from HTTP or gRPC, before its check against the model."""

    request_id: str = ""
    inputs: dict[str, InputTensor] = {}  # by name
    outputs: dict[str, RequestedOutput] | None = None  # requested outputs by name; None requests all
    binary: bool = False  # whether HTTP sends unlisted outputs as raw bytes
    priority: int = 0  # 1 is the highest; 0: not set
    timeout_us: int = 0  # 0: not set
    parameters: dict[str, Any] = {}  # parameters for hooks
    correlation_id: int | str = 0  # id of the sequence; 0: no sequence
    flags: int = 0  # 1: the request starts a sequence, 2: it ends the sequence
    spans: dict[str, Span] | None = None  # shared memory of outputs, by name
    shared_bytes: int = 0  # size of all inputs in shared memory

    def add_input(self, tensor: InputTensor) -> None:
        """Add an input tensor. Raises KServeRefusal (HTTP 400) for a name that is already used."""
        if self.inputs.setdefault(tensor.name, tensor) is not tensor:
            raise request_refusal(self.request_id, f"input '{tensor.name}' already exists in request")

    def add_shared_input(self, name: str, datatype: str, shape: list[int], span: Span) -> None:
        """Add an input tensor whose elements are in shared memory, at `span`.

        Raises KServeRefusal (HTTP 400) for a name that is already used.
        """
        self.shared_bytes += span.size
        self.add_input(InputTensor(name, datatype, shape, span, Written.RAW))

    def add_output(self, output: RequestedOutput, span: Span | None = None) -> None:
        """Add a requested output tensor. Raises KServeRefusal (HTTP 400) if its name is already requested.

        span: the output's place in shared memory; None if the output is sent in the response.
        """
        self.outputs = self.outputs or {}
        if output.name in self.outputs:
            raise request_refusal(self.request_id, f"output '{output.name}' already exists in request")
        self.outputs[output.name] = output if span is None else output._replace(room=span.size)
        if span is not None:
            self.spans = {**(self.spans or {}), output.name: span}

    @property
    def timeout_s(self) -> float:
        """Timeout that the client has set, in seconds; infinity if it has set none."""
        return self.timeout_us / 1e6 if self.timeout_us else math.inf

    def deadline_s(self, model: KServeModel) -> float:
        """Return the timeout in seconds that limits the whole request.

        Infinity for a model in a repository, because its queue policy applies the client's timeout.
        """
        return self.timeout_s if model.config is None else math.inf

    def build_request(self, model: KServeModel, form: str, scheduler: Scheduler) -> Request:
        """Check the inputs against the model, and build the request for the scheduler.

        form: name of the response format. The caller sets the `deadline` of the result. Raises KServeRefusal
        with Triton's message, and TooLarge (HTTP 413) for too long texts.
        """
        limits = scheduler.app.config.limits
        if self.shared_bytes > limits.body_bytes:
            raise request_refusal(
                self.request_id,
                f"the inputs in shared memory have {self.shared_bytes} bytes; limits.body_bytes is "
                f"{limits.body_bytes}",
            )
        if len(self.inputs) > limits.tensors:
            raise request_refusal(
                self.request_id, f"{len(self.inputs)} inputs were given; limits.tensors is {limits.tensors}"
            )
        in_sequence = self.correlation_id or self.flags
        if in_sequence and not (model.reads_sequences or scheduler.keeps_sequences(model.key)):
            raise request_refusal(
                self.request_id,
                f"model '{model.name}' keeps no sequences: send no sequence_id, sequence_start or "
                "sequence_end",
            )
        values, rows = _check_values(model, self.request_id, self.inputs, limits.tensor_rank)
        max_rows = rows
        if model.counts_rows:  # even if the model does not batch and `rows` is 1
            max_rows = max(rows, *(tensor.shape[0] for tensor in self.inputs.values() if tensor.shape), 0)
        if max_rows > limits.rows:
            raise request_refusal(
                self.request_id, f"{max_rows} rows were given; limits.rows is {limits.rows}"
            )
        check_texts(values, limits)
        if model.takes_messages:
            values = as_message(model.name, values)
        signature = model.signature
        if self.outputs and signature.outputs:
            output_names = {spec.name for spec in signature.outputs}
            for name in self.outputs:
                if name not in output_names:
                    raise KServeRefusal(f"unexpected inference output '{name}' for model '{model.name}'")
        # A cached response is shared by requests with other ids.
        finish = (
            RequestIdFinish(self.request_id, form)
            if self.request_id and form in WITH_LATER_ID and scheduler.is_cached(model.key)
            else None
        )
        response_options = ResponseOptions(
            model.name,
            "" if finish is not None else self.request_id,
            self.binary,
            None if not self.outputs else [tuple(output) for output in self.outputs.values()],
            signature.max_batch_size > 0,
            self._sequence_parameters() if model.is_ensemble else {},
        )
        request = Request(model.name, "infer", values, form=form, wish=response_options)
        request.finish = finish
        request.model_version = model.version
        request.model = model.key
        request.decoupled = model.is_decoupled
        fields = self.request_id, self.priority, self.timeout_us, self.parameters
        outputs = (
            () if model.is_ensemble else tuple(self.outputs or ())
        )  # the steps of an ensemble have other outputs
        if any(fields) or self.correlation_id or self.flags or outputs:
            request.options = RequestOptions(*fields, self.correlation_id, self.flags, outputs)
        request.rows = rows
        if model.batch_rule is not None:
            request.batch_key = model.batch_rule.build_key(self.inputs)
        # A request without priority has the highest, or the default of the model.
        request.priority = max(0, (self.priority or model.default_priority) - 1)
        if self.spans and self.outputs:
            spans = [self.spans[name] for name, output in self.outputs.items() if output.room is not None]
            request.wish = response_options._replace(request_id=self.request_id)
            request.finish = SharedMemoryOutputs(spans)
        return request

    def _sequence_parameters(self) -> dict[str, Any]:
        """Return the parameters about the sequence that Triton adds to each response of an ensemble."""
        flags: dict[str, Any] = {name: bool(self.flags & flag) for name, flag in FLAG_KEYS.items()}
        return {"sequence_id": self.correlation_id, **flags}

    def add_parameter(self, name: str, value: Any) -> None:
        """Add a parameter of the request, which is passed to user code.

        Parameters for sequences are ignored. Raises KServeRefusal (HTTP 400) for a name that Triton reserves,
        and for a value of an unsupported type.
        """
        if name in _NOT_FOR_HOOKS:
            return
        _refuse_reserved(name)
        self.parameters[replace_surrogates(name)] = check_parameter(name, value)


def _refuse_reserved(name: str) -> None:
    if name.startswith("triton_"):
        raise KServeRefusal(
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
            f"starting with 'triton_' are allowed: {_ALLOWED}"
        )


def refuse_in_json(name: str, datatype: str) -> None:
    """Raise KServeRefusal (HTTP 400) for a datatype that can't be sent in JSON, such as FP16.

    name: name of the input, for the message.
    """
    if datatype in RAW_ALONE:
        raise KServeRefusal(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data format for "
            f"input {name}"
        )


def _check_values(
    model: KServeModel, request_id: str, inputs: dict[str, InputTensor], max_rank: int
) -> tuple[dict[str, Any], int]:
    """Check the inputs against the model, and convert them to values for the scheduler.

    Returns the values by name, and the number of rows in the batch, which is 1 for a model that does not
    batch. Raises KServeRefusal with Triton's message for inputs that the model does not accept.
    """
    if _are_as_declared(model.signature, inputs, max_rank):
        rows = next(iter(inputs.values())).shape[0] if model.signature.max_batch_size else 1
    else:
        rows = _check_inputs(model, request_id, inputs, max_rank)
    if rows < 1 and model.config is not None:  # Ops of a script may take a batch without rows
        raise request_refusal(request_id, f"inference request batch-size must be >= 1 for '{model.name}'")
    return {name: _to_value(model, request_id, tensor) for name, tensor in inputs.items()}, rows


def _are_as_declared(signature: Signature, inputs: dict[str, InputTensor], max_rank: int) -> bool:
    """Return whether the inputs match the declared tensors exactly. Most requests then need no other check.

    max_rank: maximum number of dimensions.
    """
    if len(inputs) != len(signature.inputs):
        return False
    rows = -1
    for spec in signature.inputs:
        tensor = inputs.get(spec.name)
        if tensor is None or tensor.datatype != spec.datatype:
            return False
        shape = tensor.shape
        if len(shape) != len(spec.shape) or len(shape) > max_rank:
            return False
        for declared, length in zip(spec.shape, shape, strict=True):
            if length < 0 or (length != declared and declared != -1):
                return False
        if signature.max_batch_size:
            rows = shape[0] if rows < 0 else rows
            if shape[0] != rows or rows > signature.max_batch_size:
                return False
    return True


def _check_inputs(model: KServeModel, request_id: str, inputs: dict[str, InputTensor], max_rank: int) -> int:
    """Check names, datatypes and shapes of the inputs, and return the number of rows in the batch.

    A column of texts [n, 1] gets the declared shape of a vector [n]. Raises KServeRefusal with Triton's
    message.
    """
    newest_first = list(inputs.values())[::-1]  # the order of Triton's checks
    for tensor in newest_first:
        if len(tensor.shape) > max_rank:
            raise request_refusal(
                request_id,
                f"input '{tensor.name}' has {len(tensor.shape)} dimensions; limits.tensor_rank is {max_rank}",
            )
    signature = model.signature
    rows = 1
    if not signature.open:
        expected = {spec.name: spec for spec in signature.inputs}
        _check_names(model, request_id, newest_first, expected)
        for tensor in newest_first:
            if tensor.datatype != expected[tensor.name].datatype:
                datatype = tensor.datatype if tensor.datatype in BY_DATATYPE else "<invalid>"
                raise request_refusal(
                    request_id,
                    f"inference input '{tensor.name}' data-type is '{datatype}', but model '{model.name}' "
                    f"expects '{expected[tensor.name].datatype}'",
                )
        if signature.max_batch_size:
            rows = _count_rows(model, request_id, newest_first)
        for tensor in newest_first:
            shape = expected[tensor.name].shape
            if len(tensor.shape) != len(shape) and _is_column_of_texts(tensor, shape):
                tensor.shape = tensor.shape[:1]
            else:
                _check_shape(model, request_id, tensor, shape)
    return rows


def _check_names(
    model: KServeModel, request_id: str, inputs: Sequence[InputTensor], expected: dict[str, TensorSpec]
) -> None:
    names = {tensor.name for tensor in inputs}
    needed = sum(not spec.optional for spec in expected.values())
    if not needed <= len(inputs) <= len(expected):
        is_exact = needed == len(expected)
        bounds = f"{needed} inputs" if is_exact else f"number of inputs between {needed} and {len(expected)}"
        missing = ",".join(f"'{n}'" for n, spec in expected.items() if n not in names and not spec.optional)
        names_sent = ",".join(f"'{tensor.name}'" for tensor in inputs)
        raise request_refusal(
            request_id,
            f"expected {bounds} but got {len(inputs)} inputs for model '{model.name}'. Got "
            f"input(s) [{names_sent}], but missing required input(s) [{missing}]. Please provide all "
            "required input(s).",
        )
    for tensor in inputs:
        if tensor.name not in expected:
            raise KServeRefusal(f"unexpected inference input '{tensor.name}' for model '{model.name}'")


def _count_rows(model: KServeModel, request_id: str, inputs: Sequence[InputTensor]) -> int:
    rows = None
    for tensor in inputs:
        if not tensor.shape:
            raise request_refusal(
                request_id,
                f"input '{tensor.name}' has no shape but model requires batch dimension for '{model.name}'",
            )
        if rows is None:
            rows = tensor.shape[0]
        elif tensor.shape[0] != rows:
            raise request_refusal(
                request_id, f"input '{tensor.name}' batch size does not match other inputs for '{model.name}'"
            )
    max_rows = model.signature.max_batch_size
    if rows is None or rows > max_rows:
        raise request_refusal(
            request_id, f"inference request batch-size must be <= {max_rows} for '{model.name}'"
        )
    return rows


def _is_column_of_texts(tensor: InputTensor, expected: tuple[int, ...]) -> bool:
    """Return whether texts have the shape [n, 1] where [-1] is declared, as Triton clients may send."""
    return (
        tensor.datatype == "BYTES" and expected == (-1,) and len(tensor.shape) == 2 and tensor.shape[1] == 1
    )


def _check_shape(model: KServeModel, request_id: str, tensor: InputTensor, expected: tuple[int, ...]) -> None:
    fits = len(tensor.shape) == len(expected) and all(
        length == declared or (declared == -1 and length >= 0)
        for declared, length in zip(expected, tensor.shape, strict=True)
    )
    if not fits:
        raise request_refusal(
            request_id,
            f"unexpected shape for input '{tensor.name}' for model '{model.name}'. Expected "
            f"{_format_shape(expected)}, got {_format_shape(tensor.shape)}."
            f"{_HINT if model.signature.max_batch_size else ''}",
        )


def _format_shape(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _to_value(model: KServeModel, request_id: str, tensor: InputTensor) -> Any:
    if tensor.datatype not in BY_DATATYPE:
        raise request_refusal(request_id, f"input '{tensor.name}' has the datatype '{tensor.datatype[:40]}'")
    if tensor.shape and not 0 <= min(tensor.shape) <= max(tensor.shape) <= _MAX_LENGTH:
        raise request_refusal(
            request_id, f"input '{tensor.name}' has the shape {_format_shape(tensor.shape)}"
        )
    as_texts = tensor.datatype == "BYTES" and model.signature.open
    data = tensor.data
    if tensor.datatype == "BYTES" or tensor.written is not Written.RAW:
        if isinstance(data, Span):
            data = data.read_bytes()
        nullable = tensor.name in model.nullable_inputs
        unread = tensor.shape, tensor.name, model.name, request_id, as_texts, nullable
        return UnreadTensor(data, int(tensor.written), tensor.datatype, *unread)
    dtype = _NUMBERS[tensor.datatype]
    expected = math.prod(tensor.shape) * dtype.itemsize
    size = data.size if isinstance(data, Span) else len(data)
    if size != expected:
        raise request_refusal(
            request_id,
            f"input byte size mismatch for input '{tensor.name}' for model '{model.name}'. Expected "
            f"{expected}, got {size}",
        )
    if isinstance(data, Span):
        data = data.read_bytes()
    try:
        return (np.frombuffer(data, dtype) if expected else np.empty(0, dtype)).reshape(tensor.shape)
    except ValueError:  # an empty tensor with lengths beyond those of NumPy
        raise request_refusal(
            request_id, f"input '{tensor.name}' has the shape {_format_shape(tensor.shape)}"
        ) from None


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: msgspec.Raw = _NO_DATA  # msgspec allows no union with None
    parameters: dict[str, Any] | None = None  # some clients send null


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
    """Parse an HTTP body, a JSON document followed by raw bytes, to an inference request.

    header_length: bytes of the JSON document; None if it is the whole body. find: returns the span of a
    tensor in shared memory. outline: a large body with placeholders for its long arrays, see `json_outline`;
    None for a small body. Raises KServeRefusal, and TooLarge (HTTP 413) for a document that nests deeper than
    limits.json_depth.
    """
    end = len(body) if header_length is None else header_length
    binary = memoryview(body)[end:]
    if outline is None:
        outline = Outline(body[:end])
        check_depth(outline.text, limits.json_depth)
    document = _parse_document(outline.text)
    _check_counts(document, limits)
    infer_request = InferRequest(document.id)
    _set_parameters(infer_request, document.parameters)
    at = 0
    for tensor in document.inputs:
        parameters = tensor.parameters or {}
        _check_source(tensor, parameters)
        if "shared_memory_region" in parameters:
            infer_request.add_shared_input(
                tensor.name, tensor.datatype, tensor.shape, _find_span(parameters, find)
            )
            continue
        size = _binary_size(parameters) if parameters else None
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
        output_parameters = json_fields.get_tensor_parameters(output) if isinstance(output, dict) else {}
        shared = "shared_memory_region" in output_parameters
        requested = _requested_output(output)
        infer_request.add_output(
            requested, _find_output_span(requested, output_parameters, find) if shared else None
        )
    return infer_request


def parse_raw(body: bytes, model: KServeModel) -> InferRequest:
    """Parse a body of raw bytes without JSON, for a model with a single input tensor.

    If a dimension is variable, the number of bytes determines it. Raises KServeRefusal (HTTP 400) for other
    models.
    """
    specs = model.signature.inputs
    if len(specs) != 1:
        raise request_refusal(
            "",
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(specs)} inputs in "
            f"'{model.name}' model configuration",
        )
    (spec,) = specs
    batched = model.signature.max_batch_size > 0
    dims = list(spec.shape[1:] if batched else spec.shape)
    if spec.datatype == "BYTES":
        if dims not in ([1], []):
            raise request_refusal(
                "", f"For BYTE datatype raw input '{spec.name}', the model must have input shape [1]"
            )
        data = len(body).to_bytes(4, "little") + body
    else:
        data = body
        if dims.count(-1) > 1:
            raise request_refusal(
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
    return _convert_document(json_fields.parse_json(document))


def _convert_document(document: Any) -> _Document:
    """Check each member of a decoded JSON document, and convert it to a `_Document`.

    Raises KServeRefusal with Triton's message.
    """
    converted = _Document([])
    inputs = json_fields.get_array(document, "inputs")
    if "id" in document:
        converted.id = json_fields.get_text(document, "id")
    converted.parameters = dict(json_fields.get_parameters(document))
    for tensor in inputs:
        if not isinstance(tensor, dict):
            raise KServeRefusal(
                f"Unable to parse 'inputs': one is {json.dumps(tensor)[:40]}, and no object with name, "
                "shape, datatype and data"
            )
        name = json_fields.get_text(tensor, "name")
        shape = [json_fields.check_unsigned(dim, "shape") for dim in json_fields.get_array(tensor, "shape")]
        datatype = json_fields.get_text(tensor, "datatype")
        data = _NO_DATA
        if "data" in tensor:
            data = msgspec.Raw(json.dumps(json_fields.get_array(tensor, "data")).encode())
        converted.inputs.append(
            _Input(name, shape, datatype, data, dict(json_fields.get_tensor_parameters(tensor)))
        )
    if "outputs" in document:
        converted.outputs = json_fields.get_array(document, "outputs")
    return converted


def _check_counts(document: _Document, limits: Limits) -> None:
    parameters = len(document.parameters)
    for tensor in document.inputs:
        parameters += len(tensor.parameters or ())
    outputs = len(document.outputs or ())
    if max(len(document.inputs), outputs, parameters) <= limits.tensors:
        return
    counts = {"inputs": len(document.inputs), "outputs": outputs, "parameters": parameters}
    name, count = next(item for item in counts.items() if item[1] > limits.tensors)
    raise request_refusal(document.id, f"{count} {name} were given; limits.tensors is {limits.tensors}")


def _set_parameters(infer_request: InferRequest, parameters: Mapping[str, Any]) -> None:
    for name, value in parameters.items():
        if name == "priority":
            infer_request.priority = json_fields.check_unsigned(value, name)
        elif name == "timeout":
            infer_request.timeout_us = json_fields.check_unsigned(value, name)
        elif name == "sequence_id":
            if type(value) is not str and (type(value) is not int or value not in range(1 << 64)):
                raise json_fields.parse_error(name, "attempt to access JSON non-string as string")
            infer_request.correlation_id = value
        elif name in FLAG_KEYS:
            infer_request.flags |= FLAG_KEYS[name] * json_fields.check_boolean(value, name)
        elif name == "binary_data_output":
            infer_request.binary = json_fields.check_boolean(value, name)
        elif name == _ALLOWED:  # of streams, which this API has none of
            raise KServeRefusal("parameter keys starting with 'triton_' are reserved for Triton usage.")
        else:
            infer_request.add_parameter(name, value)


def _check_source(tensor: _Input, parameters: Mapping[str, Any]) -> None:
    """Raise KServeRefusal for an input without data, with two sources of data, or of an unknown datatype."""
    sources = ["data"] if len(memoryview(tensor.data)) else []
    if parameters:
        sources += [name for name in ("binary_data_size", "shared_memory_region") if name in parameters]
    if len(sources) != 1:
        found_sources = f"set {' '.join(map(repr, sources))}" if sources else "no field is set"
        raise KServeRefusal(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            f"'shared_memory_region' in 'parameters'. But {found_sources}"
        )
    if tensor.datatype not in BY_DATATYPE:
        raise KServeRefusal(f"invalid datatype for input {tensor.name}")
    count = math.prod(tensor.shape)
    if count > _MAX_LENGTH:
        raise KServeRefusal(
            f"shape {_format_shape(tensor.shape)} of input '{tensor.name}' causes total element count to "
            f"exceed maximum size of {_MAX_LENGTH}"
        )
    if count * BY_DATATYPE[tensor.datatype].numpy.itemsize > _MAX_LENGTH:
        raise KServeRefusal(
            f"byte size overflow for input '{tensor.name}' of shape {_format_shape(tensor.shape)}"
        )


def _binary_size(parameters: Mapping[str, Any]) -> int | None:
    """Return the number of raw bytes of an input after the JSON document; None if its data is in JSON.

    Raises KServeRefusal for a size that is no unsigned integer.
    """
    if "binary_data_size" in parameters:
        return json_fields.check_unsigned(parameters["binary_data_size"], "binary_data_size")
    return None


def _find_span(parameters: Mapping[str, Any], find: FindSpan) -> Span:
    region = json_fields.get_text(parameters, "shared_memory_region")
    names = "shared_memory_offset", "shared_memory_byte_size"
    offset, size = (json_fields.check_unsigned(parameters.get(name, 0), name) for name in names)
    return find(region, offset, size)


def _find_output_span(requested: RequestedOutput, parameters: Mapping[str, Any], find: FindSpan) -> Span:
    for name, is_set in (
        ("classification", "classification" in parameters),
        ("binary_data", requested.binary),
    ):
        if is_set:
            raise KServeRefusal(f"Output can't set both 'shared_memory_region' and '{name}'")
    return _find_span(parameters, find)


def _requested_output(output: Mapping[str, Any]) -> RequestedOutput:
    """Parse an element of the member `outputs`, which describes an output that the client requests.

    The request's parameter `binary_data_output` does not apply to listed outputs.
    """
    name = json_fields.get_text(output, "name")
    parameters = json_fields.get_tensor_parameters(output)
    classes, binary = 0, False
    if "classification" in parameters:
        classes = json_fields.check_unsigned(parameters["classification"], "classification", verb="set")
    if "binary_data" in parameters:
        binary = json_fields.check_boolean(parameters["binary_data"], "binary_data")
    return RequestedOutput(name, binary, classes)


class ForwardedHeaders:
    """Copies headers whose names match a pattern to the parameters of an inference request, as texts."""

    def __init__(self, pattern: str) -> None:
        """Compile the pattern. pattern: a regular expression, see `HeaderPatterns`."""
        self._pattern = compile_pattern(pattern)

    def add_to(self, infer_request: InferRequest, headers: Headers) -> None:
        """Add the matching headers to the request's parameters, replacing parameters of the same name.

        Raises KServeRefusal (HTTP 400) for a name that Triton reserves.
        """
        for key, value in headers:
            name = _to_text(key)
            if self._pattern.search(name):
                infer_request.add_parameter(name, _to_text(value))


def _to_text(value: str | bytes) -> str:
    """Return a header's name or value as text: UTF-8, or ISO-8859-1 for other bytes."""
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
