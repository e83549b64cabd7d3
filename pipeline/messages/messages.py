"""Every message between the front process and one instance in a worker, as data.

A message travels as an array of its fields in msgpack, in the order they have here; a header with its
`kind` stands before it and large parts behind it, see `pipeline.messages.frames`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, ClassVar

import msgspec

from pipeline.api.batch_axis import BatchAxis
from pipeline.api.request_options import RequestOptions
from pipeline.errors import MalformedBody, ServingError, described, to_sendable_text
from pipeline.models.tensor_spec import ModelCard, Signature

REFUSAL = "@refusal"  # the input of an overridden ResponseOp in place of an output: the fields of a Refusal

Stowed = list[int | bytes]
"""An encoded value: its small parts themselves, of the large ones the length; see `frames.stow`."""


class Outcome(IntEnum):
    """How a worker settled one request."""

    ANSWER = 0  # the complete response body, in the form the request asked for
    VALUE = 1  # the Op's output, for its consumers
    ERROR = 2  # a refusal
    JUMP = 3  # the Op's output, for the consumers of its jump targets
    INPUTS = 4  # what an overridden RequestOp made of the message: the log_id in 8 bytes, then the inputs


class Message(msgspec.Struct, array_like=True, eq=False):
    """What one side tells the other. kind: its number in the header of a frame."""

    kind: ClassVar[int]


class Start(Message):
    """The front's first message to a process: what it shall be.

    app: the service, as `App.to_json` writes it. op: the Op whose instances it hosts. name: for its log
    lines. first_instance: the number of its first. shares: the instances of the Op share a process.
    """

    kind = 1
    app: str
    op: str
    name: str
    first_instance: int
    shares: bool


class Share(msgspec.Struct, array_like=True, eq=False):
    """One Op's share of one request.

    index: its place in the hand-over, by which its `Settled` names it. data_id: what the hooks of every Op
    know the request by. log_id: the client's own, 0 without. form: of the answer, by its name in the dialect
    that the request came in. wish: what that form leaves open, which the dialect alone understands.
    model_version: that the answer may name. deadline: the instant (time.monotonic) after which nobody waits
    for it. inputs: what the Op is started on, by the names of those that it comes from.
    answers: the model whose answer the Op's output is; empty where it is for other Ops. tensors: where the
    Op's model shall run by itself on single tensors of the inputs: of each input their names there and among
    its feeds, None for all. batch_axes: by feed, what adds or removes its batch axis, as `Edge` has them.
    """

    index: int
    data_id: int
    log_id: int
    form: str
    wish: Any
    model_version: str
    options: RequestOptions | None
    deadline: float
    inputs: list[tuple[str, Stowed]]
    answers: str = ""
    tensors: Sequence[Mapping[str, str | Sequence[str]] | None] | None = None
    batch_axes: Mapping[str, Sequence[BatchAxis]] | None = None


class HandOver(Message):
    """From the front: requests to be run, together where the batch plan says so.

    id: counted up by the instance's connection.
    """

    kind = 2
    id: int
    shares: list[Share]


class Ready(Message):
    """From a process: all its instances take hand-overs.

    signature: of its model, None without one that can be told. card: None without a model of its own.
    """

    kind = 3
    signature: Signature | None
    card: ModelCard | None = None


class Failed(Message):
    """From a process that can't start. final: another try would fail, too."""

    kind = 4
    reason: str
    final: bool


class Refusal(msgspec.Struct, array_like=True, frozen=True):
    """An error as it crosses between processes; see `pipeline.errors` for the fields."""

    err_no: int
    http_status: int
    grpc_code: str
    message: str
    kind: str
    clients: bool
    told: bool
    always_status: bool = False

    @classmethod
    def of(cls, error: ServingError, *, told: bool | None = None) -> Refusal:
        """told: where it is not as the error says."""
        kind = to_sendable_text(error.kind or type(error).__name__)
        told = error.logged if told is None else told
        always_status = isinstance(error, MalformedBody)  # the original's gateway had a status for no other
        return cls(*described(error), kind, bool(error.clients), bool(told), always_status)

    def error(self) -> ServingError:
        error = ServingError(self.message)
        error.err_no, error.http_status = self.err_no, self.http_status
        error.grpc_code = self.grpc_code
        error.kind, error.clients, error.logged = self.kind, self.clients, self.told
        error.always_status = self.always_status
        return error


class Settled(msgspec.Struct, array_like=True, eq=False):
    """What became of one request. index: see `Share`. parts: of every outcome but an ERROR."""

    index: int
    outcome: Outcome
    parts: Stowed = []
    refusal: Refusal | None = None


class Timings(msgspec.Struct, array_like=True):
    """Where the time of a reply's requests went, in nanoseconds, and what was run.

    preprocess_ns: told in the first reply of a hand-over that has it. batches: predictor batches. tokens:
    rows x own length. padded_tokens: with padding. answered: rows that were; without a model, requests.
    """

    preprocess_ns: int = 0
    process_ns: int = 0
    postprocess_ns: int = 0
    batches: int = 0
    rows: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    answered: int = 0


class Reply(Message):
    """From an instance: some requests of its oldest hand-over are settled; with the last all are."""

    kind = 5
    handover: int
    last: bool
    settled: list[Settled]
    timings: Timings


class Probe(Message):
    """From the front: an idle instance shall run its model once."""

    kind = 6


class Probed(Message):
    """From an instance: why that run failed; empty when it did not."""

    kind = 7
    failure: str


class OwnFamily(msgspec.Struct, array_like=True):
    """Numbers that a model counts itself, under one name.

    kind: counter, gauge or histogram. samples: what is added to the name, labels, value.
    """

    name: str
    description: str
    kind: str
    samples: list[tuple[str, dict[str, str], float]]


class OwnFamilies(Message):
    """From an instance: all numbers that its model counts itself, for one of them has changed."""

    kind = 8
    families: list[OwnFamily]


class Models(Message):
    """From the front: the models whose answer the Op's output is, for one has come since the start.

    models: as `ServedModel.to_data` has each, as JSON.
    """

    kind = 9
    models: str


KINDS: Sequence[type[Message]] = (Start, HandOver, Ready, Failed, Reply, Probe, Probed, OwnFamilies, Models)
