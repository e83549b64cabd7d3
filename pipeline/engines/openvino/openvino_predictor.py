"""Runs ONNX models and Paddle's .pdmodel programs with OpenVINO."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from pipeline.engines.base import PredictorConf
from pipeline.engines.described import feeds_of_graph
from pipeline.engines.dynamic_shape import DynamicShapes
from pipeline.engines.feeds import Array, check_feeds, check_forms, shares_runs
from pipeline.engines.fetches import select_fetches
from pipeline.engines.measured import measured_fetches
from pipeline.engines.openvino.compiled_models import compile_onnx
from pipeline.engines.openvino.graph import GraphFacts, facts_of_onnx, read_graph_facts
from pipeline.engines.openvino.openvino_config import CPU, properties
from pipeline.engines.openvino.openvino_errors import error_sentence
from pipeline.engines.openvino.openvino_import import openvino
from pipeline.engines.refusals import refusal
from pipeline.errors import ConfigError, InvalidInput, ModelFailed, UnusableFeed
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import ServingModel, Variable

log = logging.getLogger(__name__)

_INT32_END = 1 << 31
_WIDE = {"int64", "uint32", "uint64"}


class OpenVinoPredictor:
    """A compiled model, which all threads share. It releases the GIL while it runs.

    Runs take turns, each with all of `thread_num`. Where one fails, 2026.4 leaves its graph with shapes of
    the failed run, and what runs on it next may be answered with another request's outputs: so nothing runs
    beside, and the model is compiled again first.
    """

    def __init__(
        self,
        model: ServingModel,
        conf: PredictorConf,
        *,
        instance_index: int = 0,
        dynamic_shapes: DynamicShapes | None = None,
        fetch_list: Sequence[str] = (),
    ) -> None:
        core = openvino.Core()
        settings = properties(core, model, conf)
        facts, compile_ = _read_graph(core, model, settings)
        self.feeds = feeds_of_graph(model, facts.feeds, facts.fetches)
        _refuse_texts(model, self.feeds)
        self.fetches = select_fetches(model.fetches, fetch_list or conf.fetch_list)
        self._model = model
        self._compile = compile_
        self._names = {feed.alias: feed.name for feed in self.feeds}
        self._outputs = {fetch.alias: fetch.name for fetch in self.fetches}
        self._ends = _ends(self.feeds, facts.id_limits)
        self._turn = threading.Lock()
        self._request: Any = None  # of the compiled model; None after a run that failed
        self._closed = False
        try:
            self._request = compile_().create_infer_request()
        except RuntimeError as exc:
            raise ConfigError(_cant_be_loaded(model, exc)) from exc
        self.fetches = measured_fetches(model.program, self, self.fetches, facts.fetches, self.run)
        self.merges = shares_runs(model.program, facts.finder, (*self.feeds, *self.fetches))

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays by alias in and out. Raises InvalidInput, or ModelFailed with OpenVINO's reason."""
        checked = check_feeds(self.feeds, feeds)
        for alias, end in self._ends.items():
            end.check(alias, checked[alias])
        # Held until the run is over: its tensors have the memory of these arrays, and no reference to them.
        fed = {name: _writable(checked[alias]) for alias, name in self._names.items()}
        with self._turn:
            request = self._ready()
            try:
                for name, array in fed.items():
                    request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
                # Not `infer`: with one thread 2026.4 swallows its errors, and the outputs are the last run's.
                request.start_async()
                request.wait()
                # Copies: the next run writes where these are.
                return {
                    alias: np.array(request.get_tensor(name).data) for alias, name in self._outputs.items()
                }
            except Exception as exc:
                self._request = None
                with suppress(ModelFailed):  # it is tried again with the next run
                    self._ready()
                raise refusal("OpenVINO", self.feeds, checked, error_sentence(exc)) from exc

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Raise InvalidInput for feeds whose names, types, shapes or dtypes are not the model's."""
        check_forms(self.feeds, feeds)

    def close(self) -> None:
        """Free the model as soon as no run is under way."""
        with self._turn:
            self._request, self._closed = None, True

    def _ready(self) -> Any:
        """What runs the model, compiled again where the last run failed. Raises ModelFailed."""
        if self._closed:
            raise ModelFailed("the predictor is closed")
        if self._request is None:
            log.info("%s is compiled again, after a run that failed", self._model.program)
            try:
                self._request = self._compile().create_infer_request()
            except RuntimeError as exc:
                raise ModelFailed(_cant_be_loaded(self._model, exc)) from exc
        return self._request


def _read_graph(
    core: openvino.Core, model: ServingModel, settings: dict[str, Any]
) -> tuple[GraphFacts, Callable[[], Any]]:
    """What the graph tells, and what compiles it. Raises ConfigError for a file that can't be read."""
    if model.format == "onnx":
        folder, names = model.program.parent, inspect_onnx(model.program).data_files
        files = [model.program, *(folder / name for name in names)]
        return facts_of_onnx(model), lambda: compile_onnx(core, files, CPU, settings)
    try:
        graph = core.read_model(str(model.program))
    except RuntimeError as exc:
        raise ConfigError(_cant_be_loaded(model, exc)) from exc
    return read_graph_facts(graph, model), lambda: core.compile_model(graph, CPU, settings)


def _cant_be_loaded(model: ServingModel, exc: Exception) -> str:
    return f"{model.program} can't be loaded by OpenVINO {openvino.__version__}: {error_sentence(exc)}"


def _refuse_texts(model: ServingModel, feeds: Sequence[Variable]) -> None:
    for feed in feeds:
        if feed.dtype == "string":
            raise ConfigError(
                f"feed {feed.alias!r} of {model.program} holds texts, which OpenVINO is not given here: "
                "remove engine: openvino"
            )


def _writable(array: Array) -> Array:
    """OpenVINO takes no memory that is read-only."""
    return array if array.flags.writeable else array.copy()


class _End(NamedTuple):
    """Where the numbers that a feed may hold end.

    OpenVINO does not look: an id beyond its table is looked up as zeros, and of 64 bits the upper half is cut
    off, both without a word.
    """

    end: int
    why: str
    error: type[InvalidInput]

    def check(self, alias: str, array: Array) -> None:
        """Raise the error unless all numbers are in [-end, end)."""
        if int(array.view(f"u{array.itemsize}").max()) < self.end:
            return
        least, most = int(array.min()), int(array.max())
        if least < -self.end or most >= self.end:
            raise self.error(f"feed {alias!r} holds {most if most >= self.end else least}, {self.why}")


def _ends(feeds: Sequence[Variable], id_limits: Mapping[str, int]) -> dict[str, _End]:
    """By alias, for the feeds of whole numbers that need a look."""
    wide = _End(_INT32_END, "which is beyond the int32 that OpenVINO computes with", InvalidInput)
    ends = {feed.alias: wide for feed in feeds if feed.dtype in _WIDE}
    for feed in feeds:
        if feed.name in id_limits and feed.numpy_dtype.kind in "iu":
            rows = id_limits[feed.name]
            # Not InvalidInput: the other engines meet it as they run.
            ends[feed.alias] = _End(rows, f"and the model has {rows} rows to look it up in", UnusableFeed)
    return ends
