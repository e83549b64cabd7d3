"""Messages between the front process and a worker, as msgspec classes: tasks, replies, start, probes.

A message is encoded in msgpack as an array of its fields, in the order of the class. A header with its `kind`
precedes it and large parts follow it, see `pipeline.messages.frames`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, ClassVar

import msgspec

from pipeline.api.request_options import LogId, RequestOptions
from pipeline.errors import MalformedBody, ServingError, get_error_fields, to_sendable_text
from pipeline.models.tensor_spec import BatchAxis, ModelCard, Signature

STOP_HANDLER_S = 5.0  # time limit of the script's handler of SIGTERM
REFUSAL = "@refusal"  # the input of an overridden ResponseOp in place of an output: the fields of a Refusal

Stowed = list[int | bytes]
"""An encoded value: its small parts themselves, of the large ones the length; see `frames.stow`."""


class Outcome(IntEnum):
    """Kind of result that a worker returns for one request: a complete response, an output, or an error."""

    ANSWER = 0  # the complete response body, in the form the request asked for
    VALUE = 1  # the Op's output, for its consumers
    ERROR = 2  # a refusal
    JUMP = 3  # the Op's output, for the consumers of its jump targets
    INPUTS = 4  # what an overridden RequestOp made of the message: the log_id in msgpack, then the inputs
    STREAM = 5  # the answers are sent in `StreamedAnswer` messages, before and after the reply
    RESCHEDULE = 6  # the model wants the request again, in a later batch


class Message(msgspec.Struct, array_like=True, eq=False):
    """Base class of the messages between front and worker; each class has a number in the frame's header."""

    kind: ClassVar[int]  # its number in the header of a frame


class Start(Message):
    """First message from the front process to a worker: the service, and the step (Op) to run."""

    kind = 1
    app: str  # the service, as `App.to_json` writes it
    op: str  # the Op whose instances it hosts
    name: str  # for its log lines
    first_instance: int  # the number of its first instance
    shares: bool  # whether the instances of the Op share a process
    version: str  # of its model; empty for an Op without one


class TraceContext(msgspec.Struct, array_like=True, frozen=True):
    """The trace header and settings by which a worker continues a request's trace."""

    traceparent: str  # W3C's header, for requests that the model sends
    with_tensors: bool  # whether the worker describes inputs and outputs


class TracedTensor(msgspec.Struct, array_like=True, frozen=True):
    """A tensor of a traced request, with its elements as texts."""

    activity: str  # TENSOR_QUEUE_INPUT or TENSOR_BACKEND_OUTPUT
    name: str
    datatype: str
    shape: list[int]
    data: str  # elements, with commas between them


class CallMessage(msgspec.Struct, array_like=True, eq=False):
    """One request for a pipeline step (Op), as sent to a worker: inputs, options, deadline, and more."""

    index: int  # its place in the dispatch, by which its `Settled` names it
    data_id: int  # the id of the request for the hooks of every Op
    log_id: LogId  # the client's id; 0 without
    form: str  # the form of the answer, by its name in the dialect of the request
    response_options: Any  # for the renderer of the form; the dialect alone knows its type
    model_version: str  # the version that the answer may name
    options: RequestOptions | None  # the client's options, for hooks
    deadline: float  # time.monotonic() instant after which nobody waits for the answer
    inputs: list[tuple[str, Stowed]]  # inputs of the Op, with the names of their sources
    answers: str = ""  # key of the model whose answer the Op's output is; empty for an output for other Ops
    # For a model that runs without hooks on single tensors: for each input, feed names by tensor name; None
    # for all tensors of the input.
    tensors: Sequence[Mapping[str, str | Sequence[str]] | None] | None = None
    batch_axes: Mapping[str, Sequence[BatchAxis]] | None = None  # batch axes to add or remove, by feed
    state: Stowed | None = None  # of its sequence, as a worker has encoded it; None: the initial state
    trace: TraceContext | None = None  # None for a request that is not traced


class DispatchMessage(Message):
    """Message from the front process to a worker instance: requests to run, in batches the worker forms."""

    kind = 2
    id: int  # counted up by the instance's connection
    calls: Sequence[CallMessage]
    batch_limit: int = 0  # most requests of a predictor batch; 0: as config.yml says


class Ready(Message):
    """Message from a worker process after its start: all its instances accept requests."""

    kind = 3
    signature: Signature | None  # of its model; None while unknown
    card: ModelCard | None = None  # None for an Op without a model
    has_stop_handler: bool = False  # whether the script has a handler of SIGTERM
    streams: bool = False  # whether a request may have several answers, and is told when its client leaves


class Failed(Message):
    """Message from a worker process whose start has failed, with the reason."""

    kind = 4
    reason: str
    final: bool  # whether a retry would fail, too
    of_model: bool = False  # whether the process failed to load its model


class Refusal(msgspec.Struct, array_like=True, frozen=True):
    """An error, in the form that is sent between processes. `pipeline.errors` describes the fields."""

    err_no: int
    http_status: int
    grpc_code: str
    message: str
    kind: str
    clients: bool
    logged: bool
    always_status: bool = False
    step: str = ""
    user_place: str = ""

    @classmethod
    def from_error(cls, error: ServingError, *, logged: bool | None = None) -> Refusal:
        """Convert an exception for sending to another process.

        logged: whether the log already has the error; None to use the exception's own attribute.
        """
        kind = to_sendable_text(error.kind or type(error).__name__)
        logged = error.logged if logged is None else logged
        always_status = isinstance(error, MalformedBody)  # the original's gateway had a status for no other
        flags = bool(error.clients), bool(logged), always_status
        return cls(*get_error_fields(error), kind, *flags, error.step, to_sendable_text(error.user_place))

    def error(self) -> ServingError:
        """Return the error as an exception, to be raised or answered with in the receiving process."""
        error = ServingError(self.message)
        error.err_no, error.http_status = self.err_no, self.http_status
        error.grpc_code = self.grpc_code
        error.kind, error.clients, error.logged = self.kind, self.clients, self.logged
        error.always_status, error.step, error.user_place = self.always_status, self.step, self.user_place
        return error


class Settled(msgspec.Struct, array_like=True, eq=False):
    """Result of one request in a worker's reply: the parts of an encoded value, or an error.

    An encoded value is split into parts by `frames.stow`.
    """

    index: int  # see `CallMessage`
    outcome: Outcome
    parts: Stowed = []  # of every outcome but an ERROR
    refusal: Refusal | None = None  # of an ERROR
    state: Stowed = []  # the next state of its sequence; empty if it is unchanged
    tensors: Sequence[TracedTensor] = ()  # of a traced request


class Timings(msgspec.Struct, array_like=True):
    """Times (nanoseconds) that the requests of a worker's reply took in hooks and model, and batch sizes."""

    preprocess_ns: int = 0  # in the first reply to a dispatch that has it
    process_ns: int = 0
    postprocess_ns: int = 0
    batches: int = 0  # of the predictor
    rows: int = 0
    tokens: int = 0  # without padding
    padded_tokens: int = 0  # with padding
    answered: int = 0  # rows answered; requests for an Op without a model
    # Of an Op that runs all steps of an ensemble: for each batch of a step, the step's Op, the number of
    # requests that left the step, and timings. The other fields then count the runs of one step alone.
    steps: Sequence[tuple[str, int, Timings]] = ()


class Reply(Message):
    """Message from a worker instance: results of some or all requests of its oldest dispatch."""

    kind = 5
    dispatch: int  # id of the dispatch
    last: bool  # whether all its requests are settled now
    settled: list[Settled]
    timings: Timings


class Probe(Message):
    """Message from the front process to an idle worker instance: run the model once as a health check."""

    kind = 6


class Probed(Message):
    """Message from a worker instance: the result of a `Probe`."""

    kind = 7
    failure: str  # why the run failed; empty when it did not


class OwnFamily(msgspec.Struct, array_like=True):
    """A custom Prometheus metric that a model counts in its worker, with its samples."""

    name: str
    description: str
    kind: str  # counter, gauge or histogram
    samples: list[tuple[str, dict[str, str], float]]  # suffix of the name, labels, value


class OwnFamilies(Message):
    """Message from a worker instance: all custom metrics of its model, after one has changed."""

    kind = 8
    families: list[OwnFamily]


class ModelReadiness(Message):
    """Message from a worker process: the result of `is_ready` of its Python model, after a change."""

    kind = 14
    is_ready: bool


class Models(Message):
    """Message from the front process to a worker, after models were added or removed.

    It lists the models whose response is made from the Op's (step's) output.
    """

    kind = 9
    models: str  # JSON of `pipeline.api.app.write_models`


class CallStopHandler(Message):
    """Message from the front process: call the SIGTERM handler of the user's script after the last dispatch.

    A dispatch is a group of requests.
    """

    kind = 10


class StreamedAnswer(Message):
    """Message from a worker instance: one of several answers to a request.

    Answers may follow after the last reply to the dispatch.
    """

    kind = 11
    dispatch: int  # id of the dispatch
    index: int  # see `CallMessage`
    last: bool  # whether no answer follows
    settled: Settled | None  # None: the end of the answers


class AnswersDelivered(Message):
    """Message from the front process to a worker instance: the client's connection has accepted answers."""

    kind = 12
    dispatch: int
    index: int
    answers: int  # since the last such message
    size: int  # bytes of these answers


class CancelCall(Message):
    """Message from the front process to a worker instance: no client waits for a request's answers."""

    kind = 13
    dispatch: int
    index: int


KINDS: Sequence[type[Message]] = (
    Start,
    DispatchMessage,
    Ready,
    Failed,
    Reply,
    Probe,
    Probed,
    OwnFamilies,
    Models,
    CallStopHandler,
    StreamedAnswer,
    AnswersDelivered,
    CancelCall,
    ModelReadiness,
)
