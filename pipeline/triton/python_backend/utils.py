"""Our `triton_python_backend_utils`, the module that Triton's Python models import. For workers only."""

from __future__ import annotations

import asyncio
import enum
import json
import logging
import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.api.op import AnswerSender
from pipeline.messages.messages import OwnFamily
from pipeline.models.tensor_spec import BY_DATATYPE, BY_NAME
from pipeline.process.log import NAME
from pipeline.triton.config_file import join_texts, split_texts
from pipeline.triton.python_backend.other_models import SEQUENCE_END, SEQUENCE_START, CallFailed, OtherModels

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OURS = ("paddlewheel_", "nv_", "pd_")


class MetricKind(enum.IntEnum):
    """Kind of a custom metric, as in Triton."""

    COUNTER, GAUGE, HISTOGRAM = range(3)


_lock = threading.Lock()
_families: dict[str, MetricFamily] = {}
metrics_changed = threading.Event()  # set while a changed metric was not returned by `changed_families`


class Metric:
    """A custom metric of a Python model with one set of labels, as in Triton.

    Created by `MetricFamily.Metric`.
    """

    def __init__(self, kind: MetricKind, labels: Mapping[str, str], buckets: Sequence[float]) -> None:
        self._kind = kind
        self._labels = dict(labels)
        self._value = 0.0
        self._buckets = sorted(map(float, buckets))
        self._counts = [0] * (len(self._buckets) + 1)

    def increment(self, by: float) -> None:
        """Add to a counter or gauge. Only a gauge accepts negative amounts.

        Raises TritonModelException for a histogram, and for a counter that would go down.
        """
        self._check_kind("increment", "Increment", MetricKind.COUNTER, MetricKind.GAUGE)
        if self._kind == MetricKind.COUNTER and by < 0:
            raise TritonModelException(
                "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be incremented "
                "monotonically by non-negative values."
            )
        self._change(self._value + float(by))

    def set(self, value: float) -> None:
        """Set the value of a gauge. Raises TritonModelException for a counter or histogram."""
        self._check_kind("set", "Set", MetricKind.GAUGE)
        self._change(float(value))

    def observe(self, value: float) -> None:
        """Count a value in a histogram. Raises TritonModelException for a counter or gauge."""
        self._check_kind("observe", "Observe", MetricKind.HISTOGRAM)
        number = float(value)
        self._counts[bisect_left(self._buckets, number)] += 1
        self._change(self._value + number)

    def value(self) -> float:
        """Return the current value of a counter or gauge. Raises TritonModelException for a histogram."""
        self._check_kind("get", "Value", MetricKind.COUNTER, MetricKind.GAUGE)
        return self._value

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield the Prometheus samples of this metric: (suffix of the name, labels, value).

        The worker calls this method; models do not.
        """
        if self._kind != MetricKind.HISTOGRAM:
            yield "", self._labels, self._value
            return
        below = 0
        for bound, count in zip((*map(repr, self._buckets), "+Inf"), self._counts, strict=True):
            below += count
            yield "_bucket", {**self._labels, "le": bound}, below
        yield "_sum", self._labels, self._value
        yield "_count", self._labels, below

    def _check_kind(self, verb: str, operation: str, *kinds: MetricKind) -> None:
        if self._kind not in kinds:
            raise TritonModelException(
                f"Failed to {verb} metric value: TRITONSERVER_METRIC_KIND_{self._kind.name} does not support "
                f"{operation}"
            )

    def _change(self, value: float) -> None:
        with _lock:
            self._value = value
            metrics_changed.set()


class MetricFamily:
    """A custom Prometheus metric of a Python model: all metrics with the same name and different labels.

    kind: `COUNTER`, `GAUGE` or `HISTOGRAM`. Raises TypeError for arguments of other types. Raises
    TritonModelException for an invalid name, or a name used for another kind.
    """

    COUNTER, GAUGE, HISTOGRAM = MetricKind

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        _check_types(
            "MetricFamily", name=(name, str), description=(description, str), kind=(kind, MetricKind)
        )
        if not _NAME.fullmatch(name) or name.startswith(_OURS):
            raise TritonModelException(
                f"Error when creating MetricFamily: {name!r} can't be a metric's name: use letters, digits "
                "and _, and no prefix of the server"
            )
        self._name, self._description, self._kind = name, description, kind
        self._metrics: dict[tuple[tuple[str, str], ...], Metric] = {}
        if _families.setdefault(name, self)._kind != kind:
            raise TritonModelException(
                f"Error when creating MetricFamily: there is a metric family {name!r} of another kind"
            )

    def Metric(
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """Return the metric of this family with these labels; create it on the first call.

        buckets: upper bounds, for histograms only. Raises TritonModelException for other arguments.
        """
        label_values = self._check_labels({} if labels is None else labels)
        if (self._kind == MetricKind.HISTOGRAM) != bool(buckets):
            raise TritonModelException(
                "Error when creating Metric: a histogram has buckets, and nothing else has any"
            )
        if not isinstance(buckets or [], list | tuple):
            raise TritonModelException(f"Error when creating Metric: buckets are a {type(buckets).__name__}")
        metrics = _families[self._name]._metrics
        key = tuple(sorted(label_values.items()))
        if key not in metrics:
            metrics[key] = Metric(self._kind, label_values, buckets or ())
            metrics_changed.set()
        return metrics[key]

    @staticmethod
    def _check_labels(labels: object) -> dict[str, str]:
        if not isinstance(labels, dict):
            raise TritonModelException(f"Expect dict, got {type(labels)}")
        for name, value in labels.items():
            if not isinstance(name, str) or not _LABEL.fullmatch(name):
                raise TritonModelException(
                    f"Error when creating Metric: {name!r} can't be a label's name: letters, digits and _"
                )
            if not isinstance(value, str):
                raise TritonModelException(
                    f"Error when creating Metric: the value of the label {name!r} is a "
                    f"{type(value).__name__}, and must be a str"
                )
        return dict(labels)

    def family(self) -> OwnFamily:
        """Return the family's name, kind and samples as the worker sends them to the front process."""
        samples = [sample for metric in list(self._metrics.values()) for sample in metric.samples()]
        return OwnFamily(self._name, self._description, self._kind.name.lower(), samples)


def changed_families() -> list[Any] | None:
    """Return all custom metric families if a metric has changed since the last call, else None.

    The worker calls this function; models do not.
    """
    if not metrics_changed.is_set():
        return None
    with _lock:
        metrics_changed.clear()
        return [family.family() for family in _families.values()]


TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = SEQUENCE_START
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = SEQUENCE_END
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_MEMORY_CPU, TRITONSERVER_MEMORY_GPU = 0, 2

_NO_TYPE = "TYPE_INVALID"  # data_type of a tensor without one
_MODEL_FOLDER = [""]  # of the version that this process runs
_OTHER_MODELS = [OtherModels()]


class TritonModelException(Exception):
    """Exception for Python models to raise in `execute`: all requests of the batch fail with its text.

    The HTTP status is 500. `load_model`, `unload_model` and `is_model_ready` raise it as well.
    """


class TritonError:
    """Error that a Python model puts into a response, as in Triton. code: one of the class's constants."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message = str(message)
        self._code = code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code

    def __str__(self) -> str:
        return self._message


class Tensor:
    """An input or output tensor of a Python model, as in Triton: a name and a NumPy array."""

    def __init__(self, name: str, array: np.ndarray[Any, Any], datatype: str = "") -> None:
        """Store the array without a copy.

        datatype: KServe's name, such as "FP32"; if empty, it follows from the array's dtype.
        """
        if not isinstance(name, str):
            raise TypeError(f"the name of a Tensor is a str, not {type(name).__name__}")
        if not isinstance(array, np.ndarray):
            raise TypeError(f"Tensor {name!r} takes a numpy array, not {type(array).__name__}")
        self._name = name
        self._array = array
        self._datatype = datatype

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray[Any, Any]:
        return self._array

    def shape(self) -> tuple[int, ...]:
        return tuple(self._array.shape)

    def triton_dtype(self) -> str:
        """Return the tensor's data_type in the form of config.pbtxt, such as "TYPE_FP32"."""
        kind = self._array.dtype
        datatype = self._datatype or ("BYTES" if kind.kind in "OSU" else BY_NAME[kind.name].datatype)
        return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"

    def is_cpu(self) -> bool:
        return True

    def to_dlpack(self) -> Any:
        return self._array.__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """Copy another framework's CPU tensor, or a DLPack capsule, into a new tensor.

        Raises TritonModelException for an empty name, and for an object of another type.
        """
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        is_capsule = type(tensor).__name__ == "PyCapsule"
        if not is_capsule and not hasattr(tensor, "__dlpack__"):
            raise TritonModelException(
                f"DLPack tensor is not valid: a {type(tensor).__name__} has no __dlpack__, and is no capsule."
            )
        return Tensor(name, np.from_dlpack(_Capsule(tensor) if is_capsule else tensor).copy())


class _Capsule:
    """Wraps a DLPack capsule in the methods that NumPy needs to import it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the CPU


def _check_types(of: str, **arguments: tuple[object, type | tuple[type, ...]]) -> None:
    """Raise TypeError for an argument that is not an instance of its type.

    of: name of the class, for the message. arguments: (value, expected type) by the argument's name.
    """
    for name, (value, kind) in arguments.items():
        if not isinstance(value, kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            expected = " or ".join("None" if k is type(None) else k.__name__ for k in kinds)
            raise TypeError(
                f"__init__(): incompatible constructor arguments: {name} of {of} is {expected}, not "
                f"{type(value).__name__}"
            )


def _check_parameters(parameters: object) -> dict[str, Any]:
    """Check the parameters of a request or response, and return them.

    Raises TritonModelException for wrong types.
    """
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect dict, got {type(parameters)}")
    for name, value in parameters.items():
        if not isinstance(name, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(name)}")
        if not isinstance(value, bool | int | str):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)}"
            )
    return dict(parameters)


class PreferredMemory:
    """Preferred memory (CPU or GPU) for response tensors, as in Triton.

    It has no effect: tensors are always in CPU memory.
    """

    def __init__(self, memory_type: int, memory_type_id: int = 0) -> None:
        pass


class InferenceTrace:
    """The trace of a request. A model sets the trace on requests that it builds, so that they join the trace.

    traceparent: the value of the W3C header; empty for a request that is not traced.
    """

    def __init__(self, traceparent: str = "") -> None:
        self.traceparent = traceparent

    def get_context(self) -> str | None:
        """Return the W3C trace context as JSON, with the key `traceparent`; None without a trace."""
        return json.dumps({"traceparent": self.traceparent}) if self.traceparent else None


class InferenceRequest:
    """A request, as in Triton: passed to a model's `execute`, or built by a model to call another model.

    timeout: in microseconds; 0 for none. model_name, model_version: the model to call; version -1 is the
    newest. Raises TypeError for arguments of other types, and TritonModelException for other values.
    """

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] | None = None,
        requested_output_names: Sequence[str] | None = None,
        model_name: str | None = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, Any] | None = None,
        priority: int = 0,
    ) -> None:
        _check_types(
            "InferenceRequest",
            request_id=(request_id, str),
            inputs=(inputs, (list, tuple)),
            requested_output_names=(requested_output_names, (list, tuple)),
            model_name=(model_name, str),
            model_version=(model_version, int),
            flags=(flags, int),
            timeout=(timeout, int),
            preferred_memory=(preferred_memory, (PreferredMemory, type(None))),
            trace=(trace, (InferenceTrace, type(None))),
        )
        assert inputs is not None and requested_output_names is not None and model_name is not None
        about = f"for request with id '{request_id}' and model name '{model_name}' should not be empty."
        for tensor in inputs:
            if tensor is None:
                raise TritonModelException(f"Input tensor {about}")
            _check_types("InferenceRequest", inputs=(tensor, Tensor))
        for name in requested_output_names:
            _check_types("InferenceRequest", requested_output_names=(name, str))
            if not name:
                raise TritonModelException(f"Requested output name {about}")
        if not isinstance(correlation_id, int | str):
            raise TritonModelException("Correlation ID must be integer or string")
        self._model_name = model_name
        self._model_version = model_version
        self._outputs = list(requested_output_names)
        self._inputs = list(inputs)
        self._id = request_id
        self._correlation_id = correlation_id
        self._flags = flags
        self._timeout = timeout
        self._priority = priority
        self._parameters = _check_parameters(parameters)
        self._trace = trace or InferenceTrace()
        self._answers: AnswerSender | None = None  # set by `serve`
        self.sender: InferenceResponseSender | None = None  # once the model has got it
        self._may_reschedule = False  # set by `serve`
        self._is_rescheduled = False

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def request_id(self) -> str:
        return self._id

    def correlation_id(self) -> int | str:
        return self._correlation_id

    def requested_output_names(self) -> list[str]:
        return self._outputs

    def flags(self) -> int:
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = flags

    def timeout(self) -> int:
        """Return the request's timeout in microseconds; 0 without a timeout."""
        return self._timeout

    def priority(self) -> int:
        return self._priority

    def parameters(self) -> str:
        """Return the request's parameters as JSON text."""
        return json.dumps(self._parameters, separators=(",", ":"))

    def get_parameters(self) -> dict[str, Any]:
        """Return the request's parameters as a dict.

        Only the worker calls this method; Triton does not have it.
        """
        return self._parameters

    def set_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Set the client's parameters, of any type.

        Only the worker calls this method; Triton does not have it.
        """
        self._parameters = dict(parameters)

    def trace(self) -> InferenceTrace:
        """Return the request's trace. A request that is not traced has a trace without `traceparent`."""
        return self._trace

    def is_cancelled(self) -> bool:
        """Return whether nobody waits for the response: the client has left, or the deadline has passed."""
        return self._answers is not None and self._answers.is_cancelled()

    def set_release_flags(self, flags: int) -> None:
        """Let the model get the request again in a later batch: TRITONSERVER_REQUEST_RELEASE_RESCHEDULE.

        Raises TritonModelException for a model without `iterative_sequence`, and after `execute`.
        """
        is_rescheduled = bool(flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        if is_rescheduled and not self._may_reschedule:
            raise TritonModelException(
                "Unable to reschedule the request. sequence_batching { iterative_sequence: true } in "
                "config.pbtxt allows it, until execute returns."
            )
        self._is_rescheduled = is_rescheduled

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the sender of this request's responses, the same in each call.

        Raises TritonModelException for a request that the model itself has built.
        """
        if self._answers is None:
            raise TritonModelException("only a request that execute was given has a response sender")
        if self.sender is None:
            self.sender = InferenceResponseSender(self._answers, self._convert, self._decoupled)
        return self.sender

    def serve(
        self, answers: AnswerSender, convert: Convert, *, decoupled: bool, is_iterative: bool = False
    ) -> None:
        """Connect the request to its client. Only the worker calls this method; Triton does not have it.

        convert: returns the output arrays or the error of a response. decoupled: the model may send any
        number of responses. is_iterative: whether the model may reschedule the request.
        """
        self._answers, self._convert, self._decoupled = answers, convert, decoupled
        self._may_reschedule = is_iterative

    @property
    def needs_no_response(self) -> bool:
        """Whether `execute` may return None for the request.

        Only the worker reads this property; Triton does not have it.
        """
        return self.sender is not None or self._is_rescheduled

    def release(self) -> bool:
        """End the use of the request by `execute`.

        Returns whether the model has rescheduled the request. Only the worker calls this method; Triton does
        not have it.
        """
        self._may_reschedule = False
        if self._is_rescheduled:
            self.disconnect()
        return self._is_rescheduled

    def disconnect(self) -> None:
        """Make the response sender ignore further responses.

        Only the worker calls this method; Triton does not have it.
        """
        if self.sender is not None:
            self.sender.closed = True

    def get_target_model(self) -> tuple[str, str]:
        """Return (name, version) of the model to call, with an empty version for the newest.

        Only the worker calls this method; Triton does not have it.
        """
        return self._model_name, "" if self._model_version < 0 else str(self._model_version)

    def exec(self, decoupled: bool = False, execution_timeout: int = 0) -> Any:
        """Run the request on the model of this server that the request names, and return the response.

        Failures are returned as error responses. execution_timeout: in microseconds; 0 for no limit.
        decoupled: return an iterator over the responses of a model that may be decoupled.
        """
        timeout_s = execution_timeout / 1e6 if execution_timeout else None
        if decoupled:
            return _OTHER_MODELS[0].stream(self, timeout_s)
        return _OTHER_MODELS[0].infer(self, timeout_s)

    async def async_exec(self, decoupled: bool = False, execution_timeout: int = 0) -> Any:
        """Call `exec` in a thread. A coroutine can thus await several calls at the same time."""
        return await asyncio.to_thread(self.exec, decoupled, execution_timeout)


class InferenceResponse:
    """The response of a Python model to a request, as in Triton: output tensors, or an error.

    Raises TypeError for arguments of other types, and TritonModelException for other values.
    """

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        _check_types(
            "InferenceResponse",
            output_tensors=(output_tensors, (list, tuple)),
            error=(error, (TritonError, type(None))),
        )
        for tensor in output_tensors:
            if tensor is None:
                raise TritonModelException("Output tensor for inference response should not be empty.")
            _check_types("InferenceResponse", output_tensors=(tensor, Tensor))
        self._outputs = list(output_tensors)
        self._error = error
        self._parameters = _check_parameters(parameters)

    def get_parameters(self) -> dict[str, Any]:
        """Return the response's parameters as a dict.

        Only the worker calls this method; Triton does not have it.
        """
        return self._parameters

    def set_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Set the parameters of another model's response.

        Only the worker calls this method; Triton does not have it.
        """
        self._parameters = dict(parameters)

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        """Return the response's parameters as JSON text."""
        return json.dumps(self._parameters, separators=(",", ":"))


Convert = Callable[["InferenceResponse"], Any]
_FLAGS = (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class InferenceResponseSender:
    """Sends the responses to a request, as in Triton: from any thread, also after `execute` has returned.

    If the model drops the sender before the final flag, the request ends with an error, because no further
    response can come.
    """

    def __init__(self, answers: AnswerSender, convert: Convert, decoupled: bool) -> None:
        self._answers = answers
        self._convert = convert
        self._decoupled = decoupled
        self.closed = False  # the model sends no more

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response.

        flags: TRITONSERVER_RESPONSE_COMPLETE_FINAL with the last response, or alone after it. Blocks while
        the client does not take the responses. Raises TritonModelException after the final flag, and for a
        second response of a model that is not decoupled.
        """
        if self.closed:
            Logger.log_error("the model sends a response after TRITONSERVER_RESPONSE_COMPLETE_FINAL")
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        if flags not in _FLAGS:
            raise TritonModelException(
                "Unable to send response. Unsupported response flags: 0 and "
                "TRITONSERVER_RESPONSE_COMPLETE_FINAL are supported."
            )
        if response is None and not flags:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None and not isinstance(response, InferenceResponse):
            raise TritonModelException(f"send takes an InferenceResponse, not {type(response).__name__}")
        if not self._decoupled:
            self._check_only_response(response)
        self.closed = bool(flags)
        output = None if response is None else self._convert(response)
        self._answers.send(output, last=self.closed or not self._decoupled)

    def _check_only_response(self, response: InferenceResponse | None) -> None:
        if response is None and not self._answers.sent:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a "
                "response."
            )
        if response is not None and self._answers.sent:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send more than one response."
            )

    def is_cancelled(self) -> bool:
        """Return whether no client waits for further responses."""
        return self._answers.is_cancelled()

    def fail(self, message: str) -> None:
        """End the request with an error, unless it has ended.

        Only the worker calls this method; Triton does not have it.
        """
        if not self._answers.closed:
            self._answers.send(self._convert(InferenceResponse(error=TritonError(message))), last=True)
        self.closed = True

    def __del__(self) -> None:
        """End a request that can get no further response.

        The request ends in another thread: the interpreter may call this method while the current thread
        sends a response.
        """
        if not (self.closed or self._answers.closed):
            error = self._convert(InferenceResponse(error=TritonError(_DROPPED)))
            threading.Thread(target=self._answers.send, args=(error,), kwargs={"last": True}).start()


_DROPPED = "the model has dropped the response sender before TRITONSERVER_RESPONSE_COMPLETE_FINAL"


class Logger:
    """Logger for Python models, as in Triton: writes to the server's log, which adds the model's name."""

    class LogLevel(enum.IntEnum):
        """Level of a log line."""

        INFO, WARNING, ERROR, VERBOSE = range(4)

    INFO, WARNING, ERROR, VERBOSE = LogLevel
    _log = logging.getLogger(f"{NAME}.triton.model")

    @classmethod
    def log(cls, message: str, level: LogLevel = LogLevel.INFO) -> None:
        """Write a log line of this level. Raises TypeError for arguments of other types."""
        _check_types("Logger.log", message=(message, str), level=(level, cls.LogLevel))
        levels = {cls.WARNING: logging.WARNING, cls.ERROR: logging.ERROR, cls.VERBOSE: logging.DEBUG}
        cls._log.log(levels.get(level, logging.INFO), "%s", message)

    @classmethod
    def log_info(cls, message: str) -> None:
        cls.log(message, cls.INFO)

    @classmethod
    def log_warn(cls, message: str) -> None:
        cls.log(message, cls.WARNING)

    @classmethod
    def log_error(cls, message: str) -> None:
        cls.log(message, cls.ERROR)

    @classmethod
    def log_verbose(cls, message: str) -> None:
        cls.log(message, cls.VERBOSE)


class ModelConfig:
    """Configuration that `auto_complete_config` of a Python model fills in: the fields of config.pbtxt."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = dict(config)

    def as_dict(self) -> dict[str, Any]:
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set max_batch_size. Raises ValueError if config.pbtxt has a larger value."""
        if self._config.get("max_batch_size", 0) > max_batch_size:
            configured = self._config["max_batch_size"]
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in auto-complete-config function "
                f"for model '{self._config.get('name')}' specified max_batch_size {max_batch_size}"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Enable dynamic batching; settings of config.pbtxt stay as they are."""
        self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, policy: Mapping[str, Any]) -> None:
        self._config["model_transaction_policy"] = dict(policy)

    def add_input(self, tensor: Mapping[str, Any]) -> None:
        """Add an input, or complete the input of this name; `tensor` has "name", "data_type" and "dims".

        Raises ValueError for other or missing properties, and if config.pbtxt declares the input differently.
        """
        self._add_tensor("input", tensor, ("name", "data_type", "dims", "optional", "allow_ragged_batch"))

    def add_output(self, tensor: Mapping[str, Any]) -> None:
        """Add an output, or complete the output of this name; `tensor` has "name", "data_type" and "dims".

        Raises ValueError for other or missing properties, and if config.pbtxt declares the output
        differently.
        """
        self._add_tensor("output", tensor, ("name", "data_type", "dims"))

    def _add_tensor(self, field: str, tensor: Mapping[str, Any], allowed: Sequence[str]) -> None:
        for name in tensor:
            if name not in allowed:
                raise ValueError(f"{field} property '{name}' is none of {', '.join(allowed)}")
        for name in ("name", "data_type", "dims"):
            if name not in tensor:
                raise ValueError(f"{field} {tensor.get('name', '')!r} lacks the property '{name}'")
        tensors = self._config.setdefault(field, [])
        for other in tensors:
            if other["name"] == tensor["name"]:
                self._check_agreement(field, other, tensor)
                other.update(tensor, dims=list(tensor["dims"]))
                return
        tensors.append({**tensor, "dims": list(tensor["dims"])})

    def _check_agreement(self, field: str, configured: Mapping[str, Any], tensor: Mapping[str, Any]) -> None:
        """Raise ValueError if config.pbtxt and the model's code declare an input or output differently.

        field: "input" or "output".
        """
        about = f"model '{self._config.get('name')}', {field} '{configured['name']}'"
        if configured.get("data_type", _NO_TYPE) not in (_NO_TYPE, tensor["data_type"]):
            raise ValueError(
                f"{about}: configuration expects datatype {configured['data_type']}, model provides "
                f"{tensor['data_type']}"
            )
        if configured.get("dims") and list(configured["dims"]) != list(tensor["dims"]):
            raise ValueError(
                f"{about}: the model expects dims {list(tensor['dims'])} but the model configuration "
                f"specifies dims {list(configured['dims'])}"
            )


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    """Return an input tensor of a request; None if the request does not have it."""
    return next((tensor for tensor in request.inputs() if tensor.name() == name), None)


def get_output_tensor_by_name(response: InferenceResponse, name: str) -> Tensor | None:
    """Return an output tensor of a response; None if the response does not have it."""
    return next((tensor for tensor in response.output_tensors() if tensor.name() == name), None)


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> Any:
    """Return the dict of an input in a parsed config.pbtxt; None without such an input."""
    return next((tensor for tensor in model_config.get("input", ()) if tensor["name"] == name), None)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> Any:
    """Return the dict of an output in a parsed config.pbtxt; None without such an output."""
    return next((tensor for tensor in model_config.get("output", ()) if tensor["name"] == name), None)


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return the NumPy type of a data_type such as "TYPE_FP32"; None for an unknown type and TYPE_BF16."""
    return TRITON_STRING_TO_NUMPY.get(f"TYPE_{triton_type_string.removeprefix('TYPE_')}")


def numpy_to_triton_type(data_type: Any) -> int:
    """Return the number in Triton's DataType enum for a NumPy type."""
    kind = np.dtype(data_type)
    if kind.kind in "OSU":
        return 13
    return _NUMBERS[BY_NAME[kind.name].datatype]


def triton_to_numpy_type(data_type: int) -> Any:
    """Return the NumPy type for a number in Triton's DataType enum."""
    return np.object_ if data_type == 13 else BY_DATATYPE[_NAMES[data_type]].numpy.type


TRITON_STRING_TO_NUMPY = {
    **{
        f"TYPE_{name}": kind.numpy.type for name, kind in BY_DATATYPE.items() if name not in ("BYTES", "BF16")
    },
    "TYPE_BOOL": bool,
    "TYPE_STRING": np.object_,
}
_NUMBERED = "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BYTES BF16"
_NUMBERS = {name: number for number, name in enumerate(_NUMBERED.split(), 1)}
_NAMES = {number: name for name, number in _NUMBERS.items()}


def serialize_byte_tensor(input_tensor: np.ndarray[Any, Any]) -> Any:
    """Serialize an array of texts as Triton does: each text after its length in four bytes.

    Returns () for an empty array, and None for an array of numbers.
    """
    if not input_tensor.size:
        return ()
    if input_tensor.dtype.kind not in "OSU":
        return None
    return join_texts(map(encode_element, input_tensor.ravel().tolist()))


def deserialize_bytes_tensor(encoded_tensor: bytes) -> np.ndarray[Any, Any]:
    """Parse the bytes of `serialize_byte_tensor` into a flat object array of bytes.

    Raises ValueError for data that ends within a text or a length.
    """
    texts = split_texts(encoded_tensor)
    array = np.empty(len(texts), object)
    array[:] = texts
    return array


def encode_element(element: Any) -> bytes:
    """Convert an element of a text tensor to bytes, in UTF-8.

    Only the worker calls this function; Triton does not have it.
    """
    return element if isinstance(element, bytes) else str(element).encode("utf-8", "surrogatepass")


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Return whether a parsed config.pbtxt declares several responses to a request (decoupled)."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def get_model_dir() -> str:
    """Return the path of the folder with model.py: the version that this process runs."""
    return _MODEL_FOLDER[0]


def load_model(model_name: str, files: Mapping[str, bytes] | None = None, config: str = "") -> None:
    """Load another model of this server, or reload this model, over gRPC. Raises TritonModelException.

    files: contents by "file:PATH", which replace the model's folder. config: JSON that replaces config.pbtxt.
    """
    try:
        _OTHER_MODELS[0].load(model_name, config, files or {})
    except CallFailed as exc:
        raise TritonModelException(exc.message) from exc


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload another model of this server, over gRPC. Raises TritonModelException.

    unload_dependents: for an ensemble, also unload the models of its steps.
    """
    try:
        _OTHER_MODELS[0].unload(model_name, unload_dependents)
    except CallFailed as exc:
        raise TritonModelException(exc.message) from exc


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether another model of this server is ready. Raises TritonModelException if the call fails.

    model_version: if empty, the server chooses the version.
    """
    try:
        return _OTHER_MODELS[0].is_ready(model_name, model_version)
    except CallFailed as exc:
        raise TritonModelException(exc.message) from exc


def set_served_model(folder: str, other_models: OtherModels) -> None:
    """Set the folder that `get_model_dir` returns, and the client that `InferenceRequest.exec` uses.

    The worker calls this function before it imports the model; Triton does not have it.
    """
    _MODEL_FOLDER[0], _OTHER_MODELS[0] = folder, other_models
