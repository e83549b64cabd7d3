"""Asked: an inference request of KServe v2 as either door has read it, checked, and made a Request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from pipeline.api.request_options import RequestOptions
from pipeline.dialects.kserve.as_message import as_message
from pipeline.dialects.kserve.json_fields import checked_parameter, sendable
from pipeline.dialects.kserve.models import KServeModel
from pipeline.dialects.kserve.refusals import KServeRefusal, of_request
from pipeline.dialects.kserve.unread import UnreadTensor, Written, check_texts
from pipeline.dialects.kserve_v2.shared_memory import Outputs, Span
from pipeline.dialects.kserve_v2.wish import WantedOutput, Wish
from pipeline.front.scheduler.dag_run import Request
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.messages.values import Part
from pipeline.models.dtypes import BY_DATATYPE, DTYPES, RAW_ALONE
from pipeline.models.tensor_spec import Signature, TensorSpec

_ALLOWED = "triton_enable_empty_final_response"
_NOT_FOR_HOOKS = (_ALLOWED, "sequence_id", "sequence_start", "sequence_end")
SEQUENCE_FLAGS = {"sequence_start": 1, "sequence_end": 2}
_NUMBERS = {  # as they travel
    dtype.datatype: dtype.numpy.newbyteorder("<") for dtype in DTYPES if dtype.name != "string"
}
_MOST_LENGTH = (1 << 63) - 1  # as the protocol's messages hold them
_HINT = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended"
    " to each input shape. If you want to specify the full shape including the batch dim in your input dims"
    " config, try setting max_batch_size to zero. See the model configuration docs for more info on"
    " max_batch_size."
)


class Given(msgspec.Struct, eq=False):
    """One input, its elements as they were written."""

    name: str
    datatype: str
    shape: list[int]
    data: Part | Span
    written: Written


class Asked(msgspec.Struct, eq=False):
    """What a client has asked for, of whichever door and not yet held against the model."""

    request_id: str = ""
    inputs: dict[str, Given] = {}  # by name
    outputs: dict[str, WantedOutput] | None = None  # those asked for, None for all
    binary: bool = False  # whether HTTP sends the others as raw bytes
    priority: int = 0  # 1 is the highest, 0 none given
    timeout_us: int = 0  # microseconds, 0 for none
    parameters: dict[str, Any] = {}  # for the hooks
    correlation_id: int | str = 0
    flags: int = 0  # 1: its sequence begins, 2: it ends
    spans: dict[str, Span] | None = None  # where outputs go in shared memory, by name
    shared_bytes: int = 0  # of all inputs in shared memory

    def give(self, one: Given) -> None:
        """One more input. Raises KServeRefusal for one that is there already."""
        if self.inputs.setdefault(one.name, one) is not one:
            raise of_request(self.request_id, f"input '{one.name}' already exists in request")

    def give_shared(self, name: str, datatype: str, shape: list[int], span: Span) -> None:
        """An input that lies in shared memory. Raises KServeRefusal for one that is there already."""
        self.shared_bytes += span.size
        self.give(Given(name, datatype, shape, span, Written.RAW))

    def want(self, wanted: WantedOutput, span: Span | None = None) -> None:
        """One more output. span: where it goes in shared memory; None where it is sent."""
        self.outputs = self.outputs or {}
        self.outputs[wanted.name] = wanted if span is None else wanted._replace(room=span.size)
        if span is not None:
            self.spans = {**(self.spans or {}), wanted.name: span}

    @property
    def timeout_s(self) -> float:
        return self.timeout_us / 1e6 if self.timeout_us else math.inf

    def deadline_s(self, model: KServeModel) -> float:
        """The time-out as a deadline of the whole request; in a repository a model's queue policy uses it."""
        return self.timeout_s if model.config is None else math.inf

    def request(self, model: KServeModel, form: str, scheduler: Scheduler) -> Request:
        """What the scheduler is given; `deadline` is for the door to set. Raises KServeRefusal."""
        limits = scheduler.app.config.limits
        if self.shared_bytes > limits.body_bytes:
            raise of_request(
                self.request_id,
                f"the inputs in shared memory have {self.shared_bytes} bytes; limits.body_bytes is "
                f"{limits.body_bytes}",
            )
        if len(self.inputs) > limits.tensors:
            raise of_request(
                self.request_id, f"{len(self.inputs)} inputs were given; limits.tensors is {limits.tensors}"
            )
        if (self.correlation_id or self.flags) and not model.reads_sequences:
            raise of_request(
                self.request_id,
                f"model '{model.name}' keeps no sequences: send no sequence_id, sequence_start or "
                "sequence_end",
            )
        values, rows = _checked(model, self.request_id, self.inputs, limits.tensor_rank)
        most_rows = rows
        if model.signature.has_rows:  # also where they are no batch, so that `rows` is 1
            most_rows = max(rows, *(one.shape[0] for one in self.inputs.values() if one.shape), 0)
        if most_rows > limits.rows:
            raise of_request(self.request_id, f"{most_rows} rows were given; limits.rows is {limits.rows}")
        check_texts(values, limits)
        if model.takes_messages:
            values = as_message(model.name, values)
        signature = model.signature
        if self.outputs and signature.outputs:
            known = {spec.name for spec in signature.outputs}
            for name in self.outputs:
                if name not in known:
                    raise KServeRefusal(f"unexpected inference output '{name}' for model '{model.name}'")
        wish = Wish(
            model.name,
            self.request_id,
            self.binary,
            None if not self.outputs else [tuple(wanted) for wanted in self.outputs.values()],
            signature.max_batch_size > 0,
            self._of_ensemble() if model.is_ensemble else {},
        )
        request = Request(model.name, "infer", values, form=form, wish=wish)
        request.model_version = model.version
        request.model = model.key
        given = self.request_id, self.priority, self.timeout_us, self.parameters
        outputs = () if model.is_ensemble else tuple(self.outputs or ())  # its steps have others
        if any(given) or self.correlation_id or self.flags or outputs:
            request.options = RequestOptions(*given, self.correlation_id, self.flags, outputs)
        request.rows = rows
        # None given counts as the highest, unless the model says otherwise.
        request.priority = max(0, (self.priority or model.default_priority) - 1)
        if self.spans and self.outputs:
            spans = [self.spans[name] for name, wanted in self.outputs.items() if wanted.room is not None]
            request.finish = Outputs(spans)
        return request

    def _of_ensemble(self) -> dict[str, Any]:
        """What Triton's answers of ensembles say of their sequence, also where there is none."""
        told: dict[str, Any] = {name: bool(self.flags & flag) for name, flag in SEQUENCE_FLAGS.items()}
        return {"sequence_id": self.correlation_id, **told}

    def take_parameter(self, name: str, value: Any) -> None:
        """One more parameter that the protocol gives no meaning. Raises KServeRefusal for Triton's own."""
        if name in _NOT_FOR_HOOKS:
            return
        _refuse_reserved(name)
        self.parameters[sendable(name)] = checked_parameter(name, value)


def _refuse_reserved(name: str) -> None:
    if name.startswith("triton_"):
        raise KServeRefusal(
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
            f"starting with 'triton_' are allowed: {_ALLOWED}"
        )


def refuse_in_json(name: str, datatype: str) -> None:
    """Refuse an input in JSON whose datatype has no elements there. Raises KServeRefusal."""
    if datatype in RAW_ALONE:
        raise KServeRefusal(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data format for "
            f"input {name}"
        )


def _checked(
    model: KServeModel, request_id: str, given: dict[str, Given], most_rank: int
) -> tuple[dict[str, Any], int]:
    """What the scheduler is given, by name; and the rows of the batch, 1 where there is none.

    Raises KServeRefusal, in Triton's words, for inputs that the model does not take.
    """
    if _are_as_declared(model.signature, given, most_rank):
        rows = next(iter(given.values())).shape[0] if model.signature.max_batch_size else 1
    else:
        rows = _checked_in_turn(model, request_id, given, most_rank)
    values = {}
    for name, one in given.items():
        values[name] = _value(model, request_id, one)
    return values, rows


def _are_as_declared(signature: Signature, given: dict[str, Given], most_rank: int) -> bool:
    """Whether the inputs are just what the model declares: of most requests nothing more is looked at."""
    if len(given) != len(signature.inputs):
        return False
    rows = -1
    for spec in signature.inputs:
        one = given.get(spec.name)
        if one is None or one.datatype != spec.datatype:
            return False
        shape = one.shape
        if len(shape) != len(spec.shape) or len(shape) > most_rank:
            return False
        for want, got in zip(spec.shape, shape, strict=True):
            if got < 0 or (got != want and want != -1):
                return False
        if signature.max_batch_size:
            rows = shape[0] if rows < 0 else rows
            if shape[0] != rows or rows > signature.max_batch_size:
                return False
    return True


def _checked_in_turn(model: KServeModel, request_id: str, given: dict[str, Given], most_rank: int) -> int:
    """The rows of the batch; a column of texts becomes the vector that was declared. Raises KServeRefusal."""
    newest_first = list(given.values())[::-1]  # the order in which Triton looks at them
    for one in newest_first:
        if len(one.shape) > most_rank:
            raise of_request(
                request_id,
                f"input '{one.name}' has {len(one.shape)} dimensions; limits.tensor_rank is {most_rank}",
            )
    signature = model.signature
    rows = 1
    if not signature.open:
        expected = {spec.name: spec for spec in signature.inputs}
        _check_names(model, request_id, newest_first, expected)
        for one in newest_first:
            if one.datatype != expected[one.name].datatype:
                told = one.datatype if one.datatype in BY_DATATYPE else "<invalid>"
                raise of_request(
                    request_id,
                    f"inference input '{one.name}' data-type is '{told}', but model '{model.name}' expects "
                    f"'{expected[one.name].datatype}'",
                )
        if signature.max_batch_size:
            rows = _rows(model, request_id, newest_first)
        for one in newest_first:
            shape = expected[one.name].shape
            if len(one.shape) != len(shape) and _is_column_of_texts(one, shape):
                one.shape = one.shape[:1]
            else:
                _check_shape(model, request_id, one, shape)
    return rows


def _check_names(
    model: KServeModel, request_id: str, given: Sequence[Given], expected: dict[str, TensorSpec]
) -> None:
    names = {one.name for one in given}
    needed = sum(not spec.optional for spec in expected.values())
    if not needed <= len(given) <= len(expected):
        told = f"{needed}" if needed == len(expected) else f"between {needed} and {len(expected)}"
        missing = ",".join(f"'{n}'" for n, spec in expected.items() if n not in names and not spec.optional)
        got = ",".join(f"'{one.name}'" for one in given)
        raise of_request(
            request_id,
            f"expected {told} inputs but got {len(given)} inputs for model '{model.name}'. Got "
            f"input(s) [{got}], but missing required input(s) [{missing}]. Please provide all required "
            "input(s).",
        )
    for one in given:
        if one.name not in expected:
            raise KServeRefusal(f"unexpected inference input '{one.name}' for model '{model.name}'")


def _rows(model: KServeModel, request_id: str, given: Sequence[Given]) -> int:
    rows = None
    for one in given:
        if not one.shape:
            raise of_request(
                request_id,
                f"input '{one.name}' has no shape but model requires batch dimension for '{model.name}'",
            )
        if rows is None:
            rows = one.shape[0]
        elif one.shape[0] != rows:
            raise of_request(
                request_id, f"input '{one.name}' batch size does not match other inputs for '{model.name}'"
            )
    most = model.signature.max_batch_size
    if rows is None or rows > most:
        raise of_request(request_id, f"inference request batch-size must be <= {most} for '{model.name}'")
    return rows


def _is_column_of_texts(one: Given, expected: tuple[int, ...]) -> bool:
    """[n, 1] for [-1]: what clients send to tokenizers behind Triton, where a batch has the texts."""
    return one.datatype == "BYTES" and expected == (-1,) and len(one.shape) == 2 and one.shape[1] == 1


def _check_shape(model: KServeModel, request_id: str, one: Given, expected: tuple[int, ...]) -> None:
    fits = len(one.shape) == len(expected) and all(
        got == want or (want == -1 and got >= 0) for want, got in zip(expected, one.shape, strict=True)
    )
    if not fits:
        raise of_request(
            request_id,
            f"unexpected shape for input '{one.name}' for model '{model.name}'. Expected {_text(expected)}, "
            f"got {_text(one.shape)}.{_HINT if model.signature.max_batch_size else ''}",
        )


def _text(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _value(model: KServeModel, request_id: str, one: Given) -> Any:
    if one.datatype not in BY_DATATYPE:
        raise of_request(request_id, f"input '{one.name}' has the datatype '{one.datatype[:40]}'")
    if one.shape and not 0 <= min(one.shape) <= max(one.shape) <= _MOST_LENGTH:
        raise of_request(request_id, f"input '{one.name}' has the shape {_text(one.shape)}")
    as_texts = one.datatype == "BYTES" and model.signature.open
    data = one.data
    if one.datatype == "BYTES" or one.written is not Written.RAW:
        if isinstance(data, Span):
            data = data.read()
        unread = one.shape, one.name, model.name, request_id, as_texts
        return UnreadTensor(data, int(one.written), one.datatype, *unread)
    dtype = _NUMBERS[one.datatype]
    expected = math.prod(one.shape) * dtype.itemsize
    given = data.size if isinstance(data, Span) else len(data)
    if given != expected:
        raise of_request(
            request_id,
            f"input byte size mismatch for input '{one.name}' for model '{model.name}'. Expected {expected}, "
            f"got {given}",
        )
    if isinstance(data, Span):
        data = data.read()
    try:
        return (np.frombuffer(data, dtype) if expected else np.empty(0, dtype)).reshape(one.shape)
    except ValueError:  # no elements in lengths beyond what an array may have
        raise of_request(request_id, f"input '{one.name}' has the shape {_text(one.shape)}") from None
