"""Runner: runs the batches of a hand-over through the model, wherever that is."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any, NamedTuple

from pipeline.engines.base import Predictor, other_shape
from pipeline.engines.remote.remote_predictor import RemotePredictor
from pipeline.errors import (
    DeadlineExceeded,
    InvalidInput,
    ModelFailed,
    Overloaded,
    RemoteRefused,
    RemoteUnreachable,
    ServingError,
    text_of,
)
from pipeline.worker.call import Call
from pipeline.worker.hooks import Hooks
from pipeline.worker.merge import Feed, Joining, join, split
from pipeline.worker.plan import BatchLimits, Item, plan

log = logging.getLogger(__name__)

CALLS_UNDER_WAY = 32  # most remote calls of one hand-over at once
# Of a remote model, and not of these feeds: halves of the batch would only fail again, and take as long.
_REMOTE_ERRORS = (DeadlineExceeded, Overloaded, RemoteRefused, RemoteUnreachable)


class Piece(NamedTuple):
    """A feed, or a slice of one, on its way through the model."""

    call: Call
    feed_number: int
    slice_number: int
    feed: Feed
    item: Item


class Run(NamedTuple):
    """A batch that has run. fetches: of each of its pieces, or a ServingError."""

    batch: list[Piece]
    fetches: list[Any]
    took_ns: int


class Runner:
    """Knows the model: a predictor of this process or a remote one, the app's own `process`, or none.

    limits: of a batch. runs_model: whether there is one. takes_arrays: whether a feed is a dict of arrays
    alone; an app's own `process` and a remote Pipeline service take other values, too. set_attributes: where
    several requests may share a call of the app's `process`, which then runs on a copy; else None.
    """

    def __init__(
        self, hooks: Hooks, predictor: Predictor | None, limits: BatchLimits, joining: Joining
    ) -> None:
        self.limits = limits
        self.joining = joining
        self._hooks = hooks
        self._predictor = predictor
        self._remote = predictor if isinstance(predictor, RemotePredictor) and not hooks.own_process else None
        local = predictor is not None and not isinstance(predictor, RemotePredictor)
        self._declared = predictor.feeds if predictor is not None and local else ()
        self._pool = ThreadPoolExecutor(CALLS_UNDER_WAY) if self._remote is not None else None
        self.runs_model = predictor is not None or hooks.own_process
        shared = hooks.own_process and (limits.requests > 1 or hooks.batch_postprocess)
        self.set_attributes = hooks.set_attributes if shared else None
        self.takes_arrays = not hooks.own_process and (self._remote is None or self._remote.merges)

    @property
    def one_by_one(self) -> bool:
        """Whether each batch is one request, and has run before the next one begins."""
        return self.limits.requests == 1 and self._pool is None

    def has_rows(self, feed: Feed) -> bool:
        """Whether the first axis of its arrays is the batch: only the declared shapes promise that, and a
        program may take others, too."""
        return self._hooks.own_process or other_shape(self._declared, feed) is None

    def plan(self, pieces: list[Piece]) -> list[list[Piece]]:
        planned = plan([piece.item for piece in pieces], self.limits) if pieces else []
        if self._hooks.own_process:  # it is given the requests of a batch in the order of their arrival
            planned = [sorted(batch) for batch in planned]
            if self.limits.requests == 1:  # and the feeds of a mini-batch, on one object, in the app's order
                planned.sort()
        return [[pieces[i] for i in batch] for batch in planned]

    def run(self, batches: list[list[Piece]]) -> Iterator[Run]:
        """Each as it ends; the calls of a remote model are under way together."""
        if self._pool is None or len(batches) == 1:
            yield from map(self._run_batch, batches)
            return
        futures = [self._pool.submit(self._run_batch, batch) for batch in batches]
        for future in as_completed(futures):
            yield future.result()

    def _run_batch(self, batch: list[Piece]) -> Run:
        started = time.perf_counter_ns()
        fetches = self._process(batch)
        return Run(batch, fetches, time.perf_counter_ns() - started)

    def _process(self, batch: list[Piece]) -> list[Any]:
        """A fetch or a ServingError for each piece; an engine error is traced to its feed by halves."""
        left: dict[str, Any] = {}
        try:
            merged = join([p.feed for p in batch], [p.item for p in batch], self.joining)
            if len(batch) > 1 and not self.has_rows(merged):
                return [result for piece in batch for result in self._process([piece])]
            if self._remote is not None:
                fetches = self._remote.run(merged, deadline=max(piece.call.deadline for piece in batch))
            elif self._hooks.own_process:
                fetches, left = self._own_process(batch, merged)
            else:
                assert self._predictor is not None
                fetches = self._predictor.run(merged)
        except BaseException as exc:
            if self._remote is not None and isinstance(exc, _REMOTE_ERRORS):
                return [exc] * len(batch)
            if len(batch) == 1:
                return [self._as_model_error(exc, batch[0])]
            half = len(batch) // 2
            return self._process(batch[:half]) + self._process(batch[half:])
        parts = split(fetches, [piece.item for piece in batch], self.joining.padding)
        if parts is None and len(batch) == 1:  # a fetch without a batch axis belongs to the only request
            parts = [fetches]
        if parts is not None:
            for piece in batch if left else ():
                piece.call.leave(piece.feed_number, piece.slice_number, left)
            return parts
        # As many boxes as images can be a coincidence next time, and would be cut apart wrongly.
        self.limits = replace(self.limits, requests=1)
        log.warning(
            "[%s] answers without a row for each row fed: its requests run alone", self._hooks.op.name
        )
        return [result for piece in batch for result in self._process([piece])]

    def _own_process(self, batch: list[Piece], feed: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fetch of the app's `process`, and what it has set on `self` for others than its own request.

        It knows a batch by the first request's log_id and by what hooks have set for the last, as in Paddle
        Serving, where preprocess of the last had run just before.
        """
        log_id = batch[0].call.request.log_id
        own = batch[-1].call.own
        if self.set_attributes is not None:
            return self._hooks.process_on_copy(own, feed, log_id)
        return self._hooks.process(self._hooks.own_copy() if own is None else own, feed, log_id), {}

    def _as_model_error(self, exc: BaseException, piece: Piece) -> ServingError:
        name = self._hooks.op.name
        if self._hooks.own_process:
            return self._hooks.failure(exc, "process", piece.call.request)
        if isinstance(exc, InvalidInput):
            error = InvalidInput(f"[{name}] the feed of preprocess: {exc.message}")
            error.err_no = exc.err_no
            return error
        return ModelFailed(f"[{name}] failed to predict. {text_of(exc)}. Please check the input dict")
