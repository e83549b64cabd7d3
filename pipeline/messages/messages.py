"""Every message between the front process and one instance in a worker, as data.

A message travels as an array of its fields in msgpack, in the order of the class. A header with its `kind`
stands before it and large parts behind it, see `pipeline.messages.frames`.
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
    """How a worker settled one request."""

    ANSWER = 0  # the complete response body, in the form the request asked for
    VALUE = 1  # the Op's output, for its consumers
    ERROR = 2  # a refusal
    JUMP = 3  # the Op's output, for the consumers of its jump targets
    INPUTS = 4  # what an overridden RequestOp made of the message: the log_id in msgpack, then the inputs


class Message(msgspec.Struct, array_like=True, eq=False):
    """Base of the messages between front and worker."""

    kind: ClassVar[int]  # its number in the header of a frame


class Start(Message):
    """The front's first message to a process: the service, and the Op that the process runs."""

    kind = 1
    app: str  # the service, as `App.to_json` writes it
    op: str  # the Op whose instances it hosts
    name: str  # for its log lines
    first_instance: int  # the number of its first instance
    shares: bool  # whether the instances of the Op share a process


class CallMessage(msgspec.Struct, array_like=True, eq=False):
    """The task of one Op for one request."""

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


class DispatchMessage(Message):
    """From the front: requests to run, in the batches of the worker's plan."""

    kind = 2
    id: int  # counted up by the instance's connection
    calls: Sequence[CallMessage]
    batch_limit: int = 0  # most requests of a predictor batch; 0: as config.yml says


class Ready(Message):
    """From a process: all its instances accept dispatches."""

    kind = 3
    signature: Signature | None  # of its model; None while unknown
    card: ModelCard | None = None  # None for an Op without a model
    has_stop_handler: bool = False  # whether the script has a handler of SIGTERM


class Failed(Message):
    """From a process that can't start."""

    kind = 4
    reason: str
    final: bool  # whether a retry would fail, too
    of_model: bool = False  # whether the process failed to load its model


class Refusal(msgspec.Struct, array_like=True, frozen=True):
    """An error as it crosses between processes; see `pipeline.errors` for the fields."""

    err_no: int
    http_status: int
    grpc_code: str
    message: str
    kind: str
    clients: bool
    logged: bool
    always_status: bool = False

    @classmethod
    def from_error(cls, error: ServingError, *, logged: bool | None = None) -> Refusal:
        """Describe an error. logged: whether the log has it; None: as the error says."""
        kind = to_sendable_text(error.kind or type(error).__name__)
        logged = error.logged if logged is None else logged
        always_status = isinstance(error, MalformedBody)  # the original's gateway had a status for no other
        return cls(*get_error_fields(error), kind, bool(error.clients), bool(logged), always_status)

    def error(self) -> ServingError:
        error = ServingError(self.message)
        error.err_no, error.http_status = self.err_no, self.http_status
        error.grpc_code = self.grpc_code
        error.kind, error.clients, error.logged = self.kind, self.clients, self.logged
        error.always_status = self.always_status
        return error


class Settled(msgspec.Struct, array_like=True, eq=False):
    """The result of one request."""

    index: int  # see `CallMessage`
    outcome: Outcome
    parts: Stowed = []  # of every outcome but an ERROR
    refusal: Refusal | None = None  # of an ERROR


class Timings(msgspec.Struct, array_like=True):
    """Durations of a reply's requests in the worker, and counts of the runs."""

    preprocess_ns: int = 0  # in the first reply to a dispatch that has it
    process_ns: int = 0
    postprocess_ns: int = 0
    batches: int = 0  # of the predictor
    rows: int = 0
    tokens: int = 0  # without padding
    padded_tokens: int = 0  # with padding
    answered: int = 0  # rows answered; requests for an Op without a model


class Reply(Message):
    """From an instance: results of some requests of its oldest dispatch."""

    kind = 5
    dispatch: int  # id of the dispatch
    last: bool  # whether all its requests are settled now
    settled: list[Settled]
    timings: Timings


class Probe(Message):
    """From the front: an idle instance shall run its model once."""

    kind = 6


class Probed(Message):
    """From an instance: the result of a probe."""

    kind = 7
    failure: str  # why the run failed; empty when it did not


class OwnFamily(msgspec.Struct, array_like=True):
    """A metric that a model counts itself."""

    name: str
    description: str
    kind: str  # counter, gauge or histogram
    samples: list[tuple[str, dict[str, str], float]]  # suffix of the name, labels, value


class OwnFamilies(Message):
    """From an instance: all metrics that its model counts itself, after one has changed."""

    kind = 8
    families: list[OwnFamily]


class Models(Message):
    """From the front: the models whose answer the Op's output is, after a model was added."""

    kind = 9
    models: str  # JSON of `pipeline.api.app.write_models`


class CallStopHandler(Message):
    """From the front: after its last dispatch the process calls the script's handler of SIGTERM."""

    kind = 10


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
)
