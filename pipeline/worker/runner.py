"""Runs an Op's model: joins inputs of requests into batches, runs inference, and splits the outputs again."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from pipeline.engines.base import FeedsChecked, Predictor
from pipeline.engines.feeds import LOD_SUFFIX, is_texts, other_shape
from pipeline.engines.refusals import FeedsRefused
from pipeline.engines.remote_model import RemotePredictor
from pipeline.errors import (
    DeadlineExceeded,
    ForgottenFeed,
    InvalidInput,
    MissingFeed,
    ModelFailed,
    Overloaded,
    RemoteRefused,
    RemoteUnreachable,
    ServingError,
    UnusableFeed,
    WrongResult,
    get_error_text,
)
from pipeline.models.additions import FeedPadding, Padding
from pipeline.process.isolation import isolated, log_fault
from pipeline.process.lost_device import end_if_device_is_lost
from pipeline.worker.call import Call
from pipeline.worker.hooks import Hooks, wrong_feed
from pipeline.worker.model import Joining
from pipeline.worker.plan import BatchLimits, RunCosts, Slice, bucket, plan

log = logging.getLogger(__name__)

Feed = Mapping[str, Any]
Place = tuple[slice, ...]

CALLS_UNDER_WAY = 32  # most remote calls of one dispatch at once
NOTED_EVERY = 4  # of so many runs the time of one is noted: reading two clocks costs as much as a row
_KINDS_KEPT = 1024  # shapes with a length: of texts there are as many as the model takes tokens
# Of a remote model, and not of these feeds: halves of the batch would only fail again, and take as long.
_REMOTE_ERRORS = (DeadlineExceeded, Overloaded, RemoteRefused, RemoteUnreachable)


class Run(msgspec.Struct):
    """A batch after inference: its slices, the output or error of each, and the time in nanoseconds."""

    batch: list[Slice]
    fetches: list[Any]  # of each of its slices, or a ServingError
    took_ns: int


class Runner:
    """Runs inference for an Op: by a local predictor, a remote server, the app's own `process`, or none."""

    def __init__(
        self,
        hooks: Hooks,
        predictor: Predictor | None,
        limits: BatchLimits,
        joining: Joining,
        costs: RunCosts | None = None,
        *,
        shares_process: bool = False,
    ) -> None:
        """Create the runner of one instance.

        limits, joining: sizes of batches, and rules of padding. costs: measured times, by which batches are
        cut. shares_process: other instances run in this process, so CPU time is measured per thread.
        """
        self.limits = limits  # of a batch, by config.yml and the model
        self._current_limits = limits  # see `limit_requests`
        # Of the model's runs, where they were measured: batches are cut by them.
        self._costs = None if hooks.own_process else costs
        self._cpu_ns = time.thread_time_ns if shares_process else time.process_time_ns
        self._runs = 0
        self._alike: set[Hashable] = (
            set()
        )  # shapes and lengths of joined feeds that are as the model declares
        self._joining = joining
        self._hooks = hooks
        self._predictor = predictor
        self._beside = hooks.op.request_runner
        self._remote = predictor if isinstance(predictor, RemotePredictor) and not hooks.own_process else None
        local = predictor is not None and not isinstance(predictor, RemotePredictor)
        self._declared = predictor.feeds if predictor is not None and local else ()
        # Checks feeds before they are planned; the app's own `process` may take any.
        checks = not hooks.own_process and self._beside is None
        self._checked = predictor if isinstance(predictor, FeedsChecked) and checks else None
        self._fixed_rows = any(not variable.has_rows for variable in self._declared)
        # Rows and lengths of feeds that have passed the check, by their shape; and those of the last shape.
        self._well_formed: dict[Hashable, set[tuple[int, int]]] = {}
        self._last_shape: Hashable = None
        self._last_sizes: Collection[tuple[int, int]] = ()
        self._pool = ThreadPoolExecutor(CALLS_UNDER_WAY) if self._remote is not None else None
        self.streams = self._beside is not None or hooks.streams  # whether a request may have several answers
        # Whether there is one.
        self.runs_model = predictor is not None or hooks.own_process or self._beside is not None
        # Where several requests may share a call of the app's `process`, it runs on a copy of the Op, whose
        # attributes it then sets for all of them; None elsewhere.
        shared = hooks.own_process and (limits.requests > 1 or hooks.batch_postprocess)
        self.set_attributes = hooks.set_attributes if shared else None
        # An app's own `process` and a remote Pipeline service take other values than arrays, too.
        self._takes_arrays = not hooks.own_process and (self._remote is None or self._remote.merges)

    def limit_requests(self, requests: int) -> None:
        """Set the maximum number of requests in a batch, within the configured limit."""
        max_requests = min(requests, self.limits.requests)
        if max_requests != self._current_limits.requests:
            self._current_limits = replace(self.limits, requests=max_requests)

    @property
    def one_by_one(self) -> bool:
        """Whether each batch is one request, and has run before the next one begins."""
        return self.limits.requests == 1 and self._pool is None

    @property
    def is_remote(self) -> bool:
        """Whether the model runs on another server."""
        return self._remote is not None

    @property
    def is_measured(self) -> bool:
        """Whether times of the model were measured, which `expected_ns` needs to estimate a batch's time."""
        return self._costs is not None

    def create_slices(self, calls: Sequence[Call]) -> list[Slice]:
        """Check the model inputs of requests, and return them as slices, the units of batches.

        A request with a wrong input gets its error instead. Inputs are checked before they are joined: a
        wrong input fails in the same way with or without other requests, and does not fail the others.
        """
        slices: list[Slice] = []
        for call in calls:
            if call.error is not None or call.feeds is None:
                continue
            try:
                slices += self._checked_slices(call, call.feeds)
            except WrongResult as exc:
                call.error = exc.with_traceback(None)  # no line of the app's raised it
            except BaseException as exc:  # of a dict or an array of the app's own class, say
                call.error = self._hooks.failure(exc, self._hooks.makes_feed or "preprocess", call.request)
        return slices

    def _checked_slices(self, call: Call, feeds: Sequence[Any]) -> list[Slice]:
        """Return the checked inputs of one request, cut at the row limit.

        Raises ServingError for a wrong input.
        """
        checked: list[Slice] = []
        for number, feed in enumerate(feeds):
            part = self._describe(feed)
            part.call, part.feed_number = call, number
            # What can be joined to others is a dict of arrays: only the rest may be no feed at all.
            if part.shape is None:
                self._check_type(call)
            if self._checked is not None and not self._is_well_formed(part):
                self._check_form(part, self._checked)
            feeds_of_slices = slice_feed(part, self.limits.rows)
            if len(feeds_of_slices) > 1 and not self._has_rows(part.feed):
                feeds_of_slices = [part.feed]
            call.expect(len(feeds_of_slices))
            if len(feeds_of_slices) == 1:
                checked.append(part)
                continue
            for at, rows in enumerate(feeds_of_slices):
                part = describe_feed(rows, self._joining)
                part.call, part.feed_number, part.number = call, number, at
                checked.append(part)
        return checked

    def _describe(self, feed: Any) -> Slice:
        """Return an input with its rows, length and shape, by which inputs are grouped into batches.

        Lists of texts become arrays.
        """
        try:
            part = describe_feed(feed, self._joining)
        except AttributeError:  # a name that is no str
            return Slice(1, 1, None, feed)
        if part.shape is None and self._takes_arrays:
            texts = text_arrays(feed)
            if texts is not None:
                return describe_feed(texts, self._joining)
        return part

    def _is_well_formed(self, part: Slice) -> bool:
        """Whether an input of this shape and size has passed the check of its form before.

        The latest shape is kept at hand, because most inputs have the shape of the previous input.
        """
        if part.shape != self._last_shape:
            if part.shape is None:
                return False
            self._last_shape = part.shape
            self._last_sizes = self._well_formed.get(part.shape, ())
        return (part.rows if self._fixed_rows else 0, part.length) in self._last_sizes

    def _check_form(self, part: Slice, checked: FeedsChecked) -> None:
        """Have the predictor check names, types, shapes and dtypes of an input. Raises ServingError."""
        try:
            checked.check(part.feed)
        except BaseException as exc:
            raise self._error_for(exc, part) from exc
        if part.shape is None or len(self._well_formed) >= _KINDS_KEPT:
            return
        sizes = self._last_sizes = self._well_formed.setdefault(part.shape, set())
        if len(sizes) < _KINDS_KEPT:
            sizes.add((part.rows if self._fixed_rows else 0, part.length))

    def _check_type(self, call: Call) -> None:
        """Raise WrongResult if preprocess has returned something that can't be a model input."""
        feed = call.feeds if call.feed_is_list or call.feeds is None else call.feeds[0]
        hook = "preprocess_batch" if self._hooks.batch_preprocess else "preprocess"
        wrong = wrong_feed(self._hooks.op.name, hook, feed, arrays=self._takes_arrays)
        if wrong is not None:
            raise wrong

    def _has_rows(self, feed: Feed) -> bool:
        """Whether the first axis of the input arrays is the batch axis.

        Only inputs of the declared shapes are sure to have one: a model may take other shapes, too.
        """
        return (
            self._hooks.own_process or self._beside is not None or other_shape(self._declared, feed) is None
        )

    def _are_rows(self, merged: Feed, slices: Sequence[Slice]) -> bool:
        """Whether the first axis of joined inputs is the batch axis.

        Each combination of shape and length is checked once.
        """
        kind = slices[0].shape, max([part.length for part in slices])
        if kind in self._alike:
            return True
        if not self._has_rows(merged):
            return False
        if len(self._alike) < _KINDS_KEPT:
            self._alike.add(kind)
        return True

    def plan(self, slices: list[Slice]) -> list[list[Slice]]:
        """Group slices into batches. Returns the batches in the order in which they run."""
        if not slices:
            return []
        try:
            planned = plan(slices, self._current_limits, self._costs)
        except Exception:  # no plan is needed for an answer: each feed runs alone
            log_fault(plan)
            planned = [[at] for at in range(len(slices))]
        if self._hooks.own_process or self._beside is not None:
            # It is given the requests of a batch in the order of their arrival.
            planned = [sorted(batch) for batch in planned]
            if self.limits.requests == 1:  # and the feeds of a mini-batch, on one object, in the app's order
                planned.sort()
        return [[slices[i] for i in batch] for batch in planned]

    def run(self, batches: list[list[Slice]]) -> Iterator[Run]:
        """Run inference on the batches, and yield each batch as it ends.

        Calls of a remote model run concurrently.
        """
        if self._pool is None or len(batches) == 1:
            yield from map(self._run_batch, batches)
            return
        futures = [self._pool.submit(self._run_batch, batch) for batch in batches]
        for future in as_completed(futures):
            yield future.result()

    @isolated(0.0)
    def expected_ns(self, batches: list[list[Slice]]) -> float:
        """Return the expected time of these batches in nanoseconds, from measured runs; 0 without any."""
        if self._costs is None:
            return 0.0
        sizes = (
            (sum([part.rows for part in batch]), max([part.length for part in batch])) for batch in batches
        )
        return 1e9 * sum(self._costs.estimate_s(rows, length) for rows, length in sizes)

    def _run_batch(self, batch: list[Slice]) -> Run:
        """Run inference on a batch. Never raises: each slice gets its output or its error."""
        self._runs += 1
        measures = self._costs is not None and self._runs % NOTED_EVERY == 0
        cpu_ns = self._cpu_ns() if measures else 0
        started = time.perf_counter_ns()
        fetches = self._process(batch)
        took_ns = time.perf_counter_ns() - started
        if measures:
            self._record_cost(batch, self._cpu_ns() - cpu_ns)
        return Run(batch, fetches, took_ns)

    @isolated(None)
    def _record_cost(self, batch: list[Slice], cpu_ns: int) -> None:
        rows, length = sum([part.rows for part in batch]), max([part.length for part in batch])
        if self._costs is not None:
            self._costs.record_run(rows, length, cpu_ns * 1e-9)

    def _process(self, batch: list[Slice]) -> list[Any]:
        """Return an output or a ServingError for each slice.

        A batch that fails is run again in halves, until the input that causes the error is found.
        """
        try:
            fetches = self._process_together(batch)
            if len(fetches) == len(batch):
                return fetches
            raise ModelFailed(f"there are {len(fetches)} answers to {len(batch)} requests")
        except BaseException as exc:
            end_if_device_is_lost(exc)
            if self._remote is not None and isinstance(exc, _REMOTE_ERRORS):
                return [exc] * len(batch)
            if len(batch) == 1:
                return [self._error_for(exc, batch[0])]
            half = len(batch) // 2
            return self._process(batch[:half]) + self._process(batch[half:])

    def _process_together(self, batch: list[Slice]) -> list[Any]:
        """Run inference on all slices at once. Returns an output or a ServingError for each.

        Raises whatever the model or the app's `process` raises.
        """
        process_values: dict[str, Any] = {}
        if self._beside is not None:
            requests, senders = [p.call.request for p in batch], [p.call.sender for p in batch]
            return self._beside.run(requests, [p.feed for p in batch], senders)
        merged = join(batch, self._joining)
        if len(batch) > 1 and not self._are_rows(merged, batch):
            return [result for part in batch for result in self._process([part])]
        if self._hooks.streams_process:
            return self._begin_steps(batch, merged)
        if self._remote is not None:
            deadline = max(part.call.deadline for part in batch)
            # One call has one parent span: the `batch` span links the other traced requests to it.
            traced = (part.call.request.traceparent for part in batch)
            fetches = self._remote.run(merged, deadline=deadline, traceparent=next(filter(None, traced), ""))
        elif self._hooks.own_process:
            fetches, process_values = self._own_process(batch, merged)
        else:
            assert self._predictor is not None
            fetches = self._predictor.run(merged)
        parts = split_outputs(fetches, batch, self._joining.padding, copies=not self._hooks.batch_postprocess)
        if parts is None and len(batch) == 1:  # a fetch without a batch axis belongs to the only request
            parts = [fetches]
        if parts is not None:
            for part in batch if process_values else ():
                part.call.store_process_values(part.feed_number, part.number, process_values)
            return parts
        # As many boxes as images can be a coincidence next time, and would be cut apart wrongly.
        self.limits = self._current_limits = replace(self.limits, requests=1)
        log.warning(
            "[%s] answers without a row for each row fed: its requests run alone", self._hooks.op.name
        )
        return [result for part in batch for result in self._process([part])]

    def _begin_steps(self, batch: list[Slice], feed: dict[str, Any]) -> list[Any]:
        """Call the app's `process`, a generator function.

        Returns for each slice its share of the outputs to come.
        """
        op = batch[-1].call.op
        log_id = batch[0].call.request.log_id
        values = self._hooks.begin_process(self._hooks.own_copy(op), feed, log_id)
        steps = Steps(values, batch, self._joining.padding)
        return [StepsPart(steps, number) for number in range(len(batch))]

    def _own_process(self, batch: list[Slice], feed: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Call the app's own `process` for a batch.

        Return its output, and the attributes it has set on `self`.

        Attributes are returned only if `process` ran for several requests. `process` gets the log_id of the
        first request, and the attributes that preprocess has set for the last request: in Paddle Serving,
        preprocess of that request ran just before.
        """
        log_id = batch[0].call.request.log_id
        op = batch[-1].call.op
        if self.set_attributes is not None:
            fetch, values = self._hooks.process_on_copy(op, feed, log_id)
            values.pop("sequence", None)  # it would pass from one sequence to the others of the batch
            return fetch, values
        return self._hooks.process(self._hooks.own_copy() if op is None else op, feed, log_id), {}

    def _error_for(self, exc: BaseException, part: Slice) -> ServingError:
        """Return the error of a request whose inference has raised an exception."""
        try:
            return self._as_model_error(exc, part)
        except BaseException as unspeakable:  # of the exception's own methods
            return self._hooks.failure(unspeakable, "process", part.call.request)

    def _as_model_error(self, exc: BaseException, part: Slice) -> ServingError:
        name, request = self._hooks.op.name, part.call.request
        if self._beside is not None and isinstance(exc, ServingError):
            return exc
        client_inputs = self._passed_on(part)
        if isinstance(exc, MissingFeed) and (client_inputs is None or exc.feed in client_inputs):
            maker = self._hooks.makes_feed or "the Op before"
            error: ServingError = ForgottenFeed(f"[{name}] {maker} made a feed that lacks one: {exc.message}")
        elif self._hooks.own_process:
            return self._hooks.failure(exc, "process", request)
        elif isinstance(exc, InvalidInput):
            where = "the feed of preprocess: " if self._hooks.makes_feed else ""
            exc.args = (f"[{name}] {where}{exc.message}",)
            return exc
        else:
            reason = (
                exc.with_feeds(part.feed).message if isinstance(exc, FeedsRefused) else get_error_text(exc)
            )
            unequal = isinstance(exc, FeedsRefused) and exc.unequal and client_inputs is not None
            kind = UnusableFeed if unequal else ModelFailed
            error = kind(f"[{name}] failed to predict. {reason}. Please check the input dict")
        error.__cause__ = exc
        return error

    def _passed_on(self, part: Slice) -> Mapping[str, Any] | None:
        """Return the client's inputs if they are the model's inputs, unchanged by hooks; else None.

        Inputs are unchanged if no hook makes the model's inputs, or a hook passes them on under the same
        names. A wrong input is then the client's mistake.
        """
        client_inputs = part.call.client_inputs
        own_names = client_inputs is not None and part.feed and part.feed.keys() <= client_inputs.keys()
        return client_inputs if own_names or not self._hooks.makes_feed else None


def describe_feed(feed: object, joining: Joining) -> Slice:
    """Return a model input (feed) with the rows, length and shape that decide whether it can share a batch.

    These feeds run alone:

    - Feeds whose padded arrays differ in length. Padding was declared for arrays that belong together, and
    padding the shorter one would hide the client's mistake.

    - Feeds of another rank than declared, and feeds with offsets of sequences ("x.lod"): their rows are no
    instances.

    - Empty rows: beside others their whole answer would come from the padding.
    """
    if not isinstance(feed, dict):
        return Slice(1, 1, None, feed)
    axes, ranks = joining.axes, joining.ranks
    rows = length = -1
    shape: list[Hashable] = []
    max_length = joining.max_length or sys.maxsize
    for name, value in feed.items():
        dims = value.shape if type(value) is np.ndarray or _can_be_joined(value) else ()
        if not dims or (rows != dims[0] and rows != -1) or name.endswith(LOD_SUFFIX):
            return Slice(1, 1, None, feed)
        rows, rank, axis = dims[0], len(dims), axes.get(name, 0)
        if name in joining.ragged:
            shape += name, value.dtype
            continue
        if not 0 < axis < rank:
            shape += name, value.dtype, dims[1:]
            continue
        if ranks.get(name, rank) != rank or (length != dims[axis] and length != -1) or not dims[axis]:
            return Slice(max(rows, 1), 1, None, feed)
        length = dims[axis]
        if length > max_length:
            shape += name, value.dtype, dims[1:]
        else:
            shape += (name, value.dtype) if rank == 2 else (name, value.dtype, dims[1:axis], dims[axis + 1 :])
    if rows <= 0:
        return Slice(1, 1, None, feed)
    return Slice(rows, 1 if length < 0 else length, tuple(shape), feed)


def _can_be_joined(value: Any) -> bool:
    """Whether NumPy joins the array with others unchanged: joining a masked array drops its mask."""
    return isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray)


def text_arrays(feed: object) -> Feed | None:
    """Return a model input with its lists of texts as arrays, which can be joined; None without texts."""
    if not isinstance(feed, dict) or not any(is_texts(value) for value in feed.values()):
        return None
    return {name: np.array(value, object) if is_texts(value) else value for name, value in feed.items()}


def join(slices: Sequence[Slice], joining: Joining) -> dict[str, Any]:
    """Concatenate the inputs of one batch by rows. Returns one array per input name.

    Padded axes get the length of the longest input, rounded up.
    """
    feeds = [part.feed for part in slices]
    if len(feeds) == 1 and (not joining.padding or slices[0].shape is None):
        return dict(feeds[0])
    merged: dict[str, Any] = {}
    padded = joining.padding.feeds if joining.padding else {}
    longest = max([part.length for part in slices])
    length = longest if joining.free else bucket(longest, joining.buckets, joining.max_length)
    places: dict[int, list[Place]] = {}  # by the padded axis
    for name, first in feeds[0].items():
        rule = padded.get(name)
        if rule is not None and isinstance(first, np.ndarray) and 0 < rule.axis < first.ndim:
            if rule.axis not in places:
                places[rule.axis] = _locate_slices(slices, rule.axis)
            merged[name] = _pad([feed[name] for feed in feeds], places[rule.axis], rule, length)
        else:
            merged[name] = first if len(feeds) == 1 else np.concatenate([feed[name] for feed in feeds])
    return merged


def _locate_slices(slices: Sequence[Slice], axis: int) -> list[Place]:
    """Return where each slice's elements lie in a joined array, as an index of its axes.

    axis: the padded axis.
    """
    places: list[Place] = []
    start = 0
    before = (slice(None),) * (axis - 1)
    for part in slices:
        stop = start + part.rows
        places.append((slice(start, stop), *before, slice(part.length)))
        start = stop
    return places


def _pad(arrays: Sequence[np.ndarray], places: Sequence[Place], rule: FeedPadding, length: int) -> np.ndarray:
    first, axis = arrays[0], rule.axis
    if len(arrays) == 1 and first.shape[axis] == length:
        return first
    shape = (places[-1][0].stop, *first.shape[1:axis], length, *first.shape[axis + 1 :])
    padded = np.zeros(shape, first.dtype) if rule.value == 0 else np.full(shape, rule.value, first.dtype)
    for place, array in zip(places, arrays, strict=True):
        padded[place] = array
    return padded


def split_outputs(
    fetches: Mapping[str, Any], slices: Sequence[Slice], padding: Padding | None, *, copies: bool = True
) -> list[dict[str, Any]] | None:
    """Cut the outputs of a batch into the outputs of each slice, without padding.

    Returns None if an output does not have a row for each row of the inputs. An app's own `process` may
    return a list as an output: each element is a row. With `copies` the parts of several slices are copies:
    an answer must not keep the whole batch in memory, or change with another request's answer. A hook for the
    whole batch needs no copies.
    """
    rows = sum([part.rows for part in slices])
    for fetch in fetches.values():
        if _count_rows(fetch) != rows:
            return None
    cuts = padding.fetches if padding else {}
    copies = copies and len(slices) > 1
    fetches_of_slices = []
    start = 0
    for part in slices:
        stop = start + part.rows
        cut = {name: fetch[start:stop] for name, fetch in fetches.items()}
        if part.shape is not None:
            for name, axis in cuts.items():
                if name in cut and 0 < axis < getattr(cut[name], "ndim", 0):
                    cut[name] = cut[name][(slice(None),) * axis + (slice(part.length),)]
        fetches_of_slices.append({name: array.copy() for name, array in cut.items()} if copies else cut)
        start = stop
    return fetches_of_slices


class Steps(NamedTuple):
    """Outputs that a generator `process` yields for all requests of a batch, step by step."""

    values: Any  # the generator, plain or asynchronous
    batch: list[Slice]
    padding: Padding | None

    def split(self, fetch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the outputs of each slice in a step.

        Raises ModelFailed for outputs without a row for each row of the feed.
        """
        parts = split_outputs(fetch, self.batch, self.padding)
        if parts is None and len(self.batch) == 1:
            return [dict(fetch)]
        if parts is None:
            raise ModelFailed(
                "process yields outputs without a row for each row of the feed: use batch_size 1"
            )
        return parts


class StepsPart(NamedTuple):
    """One slice's part of the outputs in `Steps`, stored in place of the outputs of an ordinary `process`."""

    steps: Steps
    number: int


def _count_rows(fetch: Any) -> int:
    if isinstance(fetch, list):
        return len(fetch)
    return fetch.shape[0] if isinstance(fetch, np.ndarray) and fetch.ndim else -1


def slice_feed(part: Slice, max_rows: int | None) -> list[Feed]:
    """Cut a model input into parts of at most `max_rows` rows.

    An input that can't share a batch stays whole.
    """
    feed = part.feed
    if max_rows is None or part.shape is None or part.rows <= max_rows:
        return [feed]
    starts = range(0, part.rows, max_rows)
    return [{name: array[at : at + max_rows] for name, array in feed.items()} for at in starts]
