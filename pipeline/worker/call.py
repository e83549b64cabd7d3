"""One request in a worker, from its dispatch to its answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from pipeline.api.dag import FEED, Names
from pipeline.api.op import REQUEST_OP, Op, OpRequest
from pipeline.api.request_options import NO_OPTIONS, RequestInputs, RequestOptions
from pipeline.errors import HookFailed, InvalidInput, ModelFailed, ServingError, get_error_text
from pipeline.messages.frames import Tail, decode
from pipeline.messages.messages import CallMessage, DispatchMessage
from pipeline.models.tensor_spec import BatchAxis, adapt_array


class Call(CallMessage):
    """One request of a dispatch, from its inputs to its response. A worker decodes the message as a Call."""

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
    carried: Mapping[str, Any] = {}  # outputs of other steps that an ensemble's answer may contain
    _fetches: list[list[Any]] = []  # for each feed, the fetches of its slices
    _missing: int = 0  # fetches that have not come yet

    def decode_inputs(self, tail: Tail, op: Op | None) -> None:
        """Decode the inputs, for hooks or as a feed. An input that can't be decoded sets the call's error."""
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
        client_inputs: Mapping[str, Any] | None = inputs.get(FEED)
        if type(request_inputs := inputs.get(REQUEST_OP)) is dict:
            client_inputs = inputs[REQUEST_OP] = RequestInputs(request_inputs)
        self.client_inputs = client_inputs
        carried = inputs
        if self.tensors is not None and self.error is None:
            try:
                feed = _joined_feed(inputs.values(), self.tensors)
                if self.batch_axes:
                    _adapt_batches(feed, self.batch_axes)
                inputs = {FEED: feed}
            except BaseException as exc:
                self.error = _as_hook_failed("the inputs of this step can't be joined", exc)
        self._set_request(inputs)
        if FEED in inputs:
            self.direct, self.feeds, self.carried = True, [inputs[FEED]], carried

    def _set_request(self, inputs: dict[str, Any]) -> None:
        options = self.options
        if options is None:
            self.request = OpRequest(inputs, self.data_id, self.log_id)
            return
        self.request = OpRequest(inputs, self.data_id, self.log_id, *options)
        try:
            if self.op is not None:
                self.op.request_options = options
        except BaseException as exc:  # of the app's own __setattr__
            self.error = _as_hook_failed("request_options can't be set on the Op", exc)

    def set_op(self, op: Op) -> None:
        """Take the Op as the hooks behind `preprocess_batch` see it: with what that has set on it."""
        self.op = op
        request = self.request
        options = RequestOptions(*(getattr(request, name) for name in RequestOptions._fields))
        if options != NO_OPTIONS:
            op.request_options = options

    def store_process_values(self, feed: int, at: int, values: dict[str, Any]) -> None:
        """Keep what `process` has set on its copy of the Op in the run of one slice."""
        if self.process_values is None:
            self.process_values = {}
        self.process_values[feed, at] = values

    def merge_process_values(self) -> dict[str, Any]:
        """Return the attributes that `process` has set for this request; of several runs the last feed's
        count.
        """
        values: dict[str, Any] = {}
        for _, slice_values in sorted((self.process_values or {}).items(), key=itemgetter(0)):
            values.update(slice_values)
        return values

    def skip_model(self, fetch: Any) -> None:
        """Take what preprocess has returned as the fetch: the model is not run for this request."""
        self.feeds = None
        self._fetches = [[dict(fetch) if type(fetch) is RequestInputs else fetch]]

    def expect(self, slices: int) -> None:
        """Make room for the fetches of the request's next feed, which is run in so many slices."""
        self._fetches.append([None] * slices)
        self._missing += slices

    def add_fetch(self, feed: int, at: int, fetch: Any) -> bool:
        """Keep one slice's fetch. Returns whether every fetch of the request is there now."""
        self._fetches[feed][at] = fetch
        self._missing -= 1
        return self._missing == 0

    def fetch(self) -> Any:
        """Return the input of postprocess: the fetch dict, or a list of them for a mini-batch."""
        if self.feed_is_list:
            return [_rejoined(slices) for slices in self._fetches]
        return _rejoined(self._fetches[0])


class Dispatch(DispatchMessage):
    """A dispatch, decoded with its calls."""

    calls: list[Call]


def _as_hook_failed(message: str, exc: BaseException) -> ServingError:
    if isinstance(exc, ServingError):
        return exc
    error = HookFailed(f"{message}: {get_error_text(exc)}")
    error.__cause__ = exc
    return error


def picked(output: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Some tensors of an output, each under its new name. names: the new by the old.

    Raises ModelFailed for one that is not there, MissingKey where it was for the client to send.
    """
    missing = [name for name in names if name not in output]
    if missing and isinstance(output, RequestInputs):
        output[missing[0]]
    if missing:
        raise ModelFailed(f"there is no tensor {missing[0]!r} to pass on, only {', '.join(output)}")
    return {new: output[name] for name, new in names.items()}


def _joined_feed(inputs: Iterable[Any], tensors: Sequence[Mapping[str, Names] | None]) -> dict[str, Any]:
    """Join one feed from several inputs. tensors: names that are passed on of each input; None: all.

    Missing tensors are left out, for an input may be optional. A model that lacks one reports it.
    """
    feed: dict[str, Any] = {}
    for output, names in zip(inputs, tensors, strict=True):
        if names is None:
            feed.update(output)
            continue
        for name, new in names.items():
            if name in output:
                feed.update(dict.fromkeys((new,) if isinstance(new, str) else new, output[name]))
    return feed


def _adapt_batches(feed: dict[str, Any], batch_axes: Mapping[str, Sequence[BatchAxis]]) -> None:
    """Give feeds the batch axis that their model expects, or none. Raises InvalidInput for a misfit."""
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
