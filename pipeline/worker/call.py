"""One request in a worker, from the front's message to its result."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from pipeline.api.dag import FEED, Names
from pipeline.api.op import REQUEST_OP, Op, OpRequest
from pipeline.api.request_options import NO_OPTIONS, RequestInputs, RequestOptions
from pipeline.errors import HookFailed, InvalidInput, ModelFailed, ServingError, get_error_text
from pipeline.messages.frames import Part, Tail, decode
from pipeline.messages.messages import CallMessage, DispatchMessage
from pipeline.models.tensor_spec import BatchAxis, adapt_array


class Call(CallMessage):
    """One request in a worker: inputs, the model's inputs and outputs, and the result or error.

    A worker decodes the front process's message as a Call.
    """

    request: OpRequest = None  # type: ignore[assignment]  # set by `decode_inputs`
    op: Op | None = None  # copy of the Op for the request's hooks; None while only batch-wise hooks run
    client_inputs: Mapping[str, Any] | None = None  # by key; None for an Op that has outputs of Ops as inputs
    direct: bool = False  # the inputs are the model's feeds, and the output is the fetch: no hooks run
    error: ServingError | None = None  # set as soon as the request can't be answered otherwise
    feeds: list[Any] | None = None  # what the model runs; None where a hook has made the fetch itself
    feed_is_list: bool = False
    output: Any = None  # result of postprocess
    hook_names: Collection[str] = ()  # attributes that preprocess has set on `op`, where they are recorded
    # Attributes that `process` has set on a copy of the Op, by the numbers of the feed and the slice.
    process_values: dict[tuple[int, int], dict[str, Any]] | None = None
    sent: bool = False  # whether its reply is sent
    sequence_state: Any = None  # the state of its sequence; None: the initial state
    next_state: Any = None  # the state after this request; None: unchanged
    carried: Mapping[str, Any] = {}  # outputs of other steps that an ensemble's answer may contain
    sender: Any = None  # an AnswerSender; None for an Op with one answer a request
    _fetches: list[list[Any]] = []  # for each feed, the fetches of its slices
    _missing: int = 0  # fetches that have not come yet

    def decode_inputs(self, tail: Tail, op: Op | None) -> None:
        """Decode the request's inputs for the hooks, or as the model's inputs.

        A failure sets the request's error. tail: the message's large parts. op: copy of the Op for the
        request's hooks.
        """
        self.op = op
        inputs: dict[str, Any] = {}
        for name, stowed in self.inputs:
            parts = tail.unstow(stowed)
            try:
                # Only a worker's own output may hold pickles; what the front encoded for the first Op can't.
                inputs[name] = decode(parts, allow_pickle=True)
            except InvalidInput as exc:  # a tensor that the front leaves to the worker
                self.error = exc
            except BaseException as exc:  # an object that leaves as it is loaded ends no worker either
                self.error = _as_hook_failed(f"input {name!r} can't be rebuilt", exc)
        if self.state is not None:
            self._decode_state(tail.unstow(self.state))
        client_inputs: Mapping[str, Any] | None = inputs.get(FEED)
        if type(request_inputs := inputs.get(REQUEST_OP)) is dict:
            client_inputs = inputs[REQUEST_OP] = RequestInputs(request_inputs)
        self.client_inputs = client_inputs
        carried, runs = inputs, True
        if self.tensors is not None and self.error is None:
            try:
                feed = _joined_feed(inputs.values(), self.tensors)
                runs = feed is not None
                if feed and self.batch_axes:
                    _adapt_batches(feed, self.batch_axes)
                inputs = {FEED: feed or {}}
            except BaseException as exc:
                self.error = _as_hook_failed("the inputs of this step can't be joined", exc)
        self._set_request(inputs)
        if FEED in inputs:
            self.direct, self.feeds, self.carried = True, [inputs[FEED]], carried
        if not runs:
            self.skip_model({})

    def _decode_state(self, parts: Sequence[Part]) -> None:
        try:
            self.sequence_state = decode(parts, allow_pickle=True)  # a worker has encoded it
        except BaseException as exc:
            self.error = _as_hook_failed("the state of the sequence can't be rebuilt", exc)

    def _set_request(self, inputs: dict[str, Any]) -> None:
        options = self.options
        if options is None:
            self.request = OpRequest(inputs, self.data_id, self.log_id)
        else:
            self.request = OpRequest(inputs, self.data_id, self.log_id, *options)
        if self.trace is not None:
            self.request.traceparent = self.trace.traceparent
        if options is None:
            return
        try:
            if self.op is not None:
                self.op.request_options = options
        except BaseException as exc:  # of the app's own __setattr__
            self.error = _as_hook_failed("request_options can't be set on the Op", exc)

    def begin_step(
        self,
        sources: Sequence[str],
        tensors: Sequence[Mapping[str, Names] | None],
        batch_axes: Mapping[str, Sequence[BatchAxis]] | None,
        *,
        copies: bool,
    ) -> None:
        """Take the outputs of earlier steps, in `carried`, as the feed of the next step of an ensemble.

        sources: names of these steps. tensors, batch_axes: see `CallMessage`. copies: other steps or the
        response need the tensors, too, and the model may write to them. A failure sets the request's error.
        """
        try:
            feed = _joined_feed([self.carried[source] for source in sources], tensors)
            if feed is None:
                self.direct, self.output, self._missing = True, {}, 0
                self.skip_model({})
                return
            if copies:
                feed = {name: value.copy() for name, value in feed.items()}
            if batch_axes:
                _adapt_batches(feed, batch_axes)
        except BaseException as exc:
            self.error = _as_hook_failed("the inputs of this step can't be joined", exc)
            return
        self.direct, self.feeds = True, [feed]
        self.output, self._fetches, self._missing = None, [], 0

    def set_op(self, op: Op) -> None:
        """Set the copy of the Op, with the request's options, that runs hooks after `preprocess_batch`."""
        self.op = op
        request = self.request
        if request.sequence is not None:
            op.sequence = request.sequence
        options = RequestOptions(*(getattr(request, name) for name in RequestOptions._fields))
        if options != NO_OPTIONS:
            op.request_options = options

    def store_process_values(self, feed: int, at: int, values: dict[str, Any]) -> None:
        """Store the attributes that the app's `process` has set on its copy of the Op for one slice.

        feed: index of the input in the request. at: index of the slice in the input.
        """
        if self.process_values is None:
            self.process_values = {}
        self.process_values[feed, at] = values

    def merge_process_values(self) -> dict[str, Any]:
        """Return the attributes that the app's `process` has set for this request.

        If `process` ran several times, the values of the last input count.
        """
        values: dict[str, Any] = {}
        for _, slice_values in sorted((self.process_values or {}).items(), key=itemgetter(0)):
            values.update(slice_values)
        return values

    def skip_model(self, fetch: Any) -> None:
        """Use a value, such as the result of preprocess, as the model's output, and do not run the model."""
        self.feeds = None
        self._fetches = [[dict(fetch) if type(fetch) is RequestInputs else fetch]]

    def expect(self, slices: int) -> None:
        """Reserve places for the outputs of the request's next input, which is run in `slices` parts."""
        self._fetches.append([None] * slices)
        self._missing += slices

    def add_fetch(self, feed: int, at: int, fetch: Any) -> bool:
        """Store the model's output for one slice of an input.

        feed: index of the input. at: index of the slice. Returns whether the request's outputs are complete.
        """
        self._fetches[feed][at] = fetch
        self._missing -= 1
        return self._missing == 0

    def fetch(self) -> Any:
        """Return the argument of postprocess: a dict of model outputs, or a list of them for a mini-batch."""
        if self.feed_is_list:
            return [_rejoined(slices) for slices in self._fetches]
        return _rejoined(self._fetches[0])


class Dispatch(DispatchMessage):
    """The front process's message with requests to run, decoded with a `Call` for each request."""

    calls: list[Call]


def _as_hook_failed(message: str, exc: BaseException) -> ServingError:
    if isinstance(exc, ServingError):
        return exc
    error = HookFailed(f"{message}: {get_error_text(exc)}")
    error.__cause__ = exc
    return error


def picked(output: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Select and rename tensors of a step's output, or of the client's inputs, in an ensemble.

    names: maps each old name to its new name. Tensors that a step has not returned are left out. Raises
    MissingKey for a tensor that the client has not sent.
    """
    if isinstance(output, RequestInputs):
        return {new: output[name] for name, new in names.items()}
    return {new: output[name] for name, new in names.items() if name in output}


def _joined_feed(
    inputs: Iterable[Any], tensors: Sequence[Mapping[str, Names] | None]
) -> dict[str, Any] | None:
    """Merge the inputs of an ensemble's step into one dict of model inputs.

    tensors: for each input, the tensors to pass on with their new names; None: all. Tensors that the client
    has not sent are left out: they may be optional. The model reports a missing required input. Returns None
    if an earlier step has not returned a tensor: Triton then does not run this step.
    """
    feed: dict[str, Any] = {}
    for output, names in zip(inputs, tensors, strict=True):
        if names is None:
            feed.update(output)
            continue
        for name, new in names.items():
            if name in output:
                feed.update(dict.fromkeys((new,) if isinstance(new, str) else new, output[name]))
            elif not isinstance(output, RequestInputs):
                return None
    return feed


def _adapt_batches(feed: dict[str, Any], batch_axes: Mapping[str, Sequence[BatchAxis]]) -> None:
    """Add or remove the batch axis of inputs, as their model expects.

    Raises InvalidInput if the shapes do not allow that.
    """
    for name, axes in batch_axes.items():
        if isinstance(array := feed.get(name), np.ndarray):  # the model refuses anything else
            array = feed[name] = adapt_array(array, axes)
            if not axes[-1].fits(array.shape):
                expected = [*((-1,) if axes[-1].batched else ()), *axes[-1].dims]
                raise InvalidInput(
                    f"unexpected shape for input '{name}'. Expected {expected}, got {list(array.shape)}"
                )


def _rejoined(slices: list[Any]) -> Any:
    if len(slices) == 1:
        return slices[0]
    try:
        return {name: _joined([part[name] for part in slices]) for name in slices[0]}
    except Exception as exc:
        raise ModelFailed(
            f"the slices of one request have fetches that don't join: {get_error_text(exc)}"
        ) from exc


def _joined(rows: list[Any]) -> Any:
    if all(isinstance(part, list) for part in rows):
        return [row for part in rows for row in part]
    return np.concatenate(rows)
