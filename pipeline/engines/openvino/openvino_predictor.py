"""Runs ONNX models and Paddle's .pdmodel programs with OpenVINO."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.engines.base import PredictorConf
from pipeline.engines.device import Device, resolve_device, tell_paddle_only
from pipeline.engines.dynamic_shape import DynamicShapes
from pipeline.engines.feeds import Array, check_feeds, check_forms, shares_runs
from pipeline.engines.fetches import feeds_of_graph, measured_fetches, select_fetches
from pipeline.engines.openvino.graph import GraphFacts, facts_of_onnx, read_graph_facts
from pipeline.engines.openvino.openvino_import import openvino
from pipeline.engines.refusals import refusal
from pipeline.errors import ConfigError, InvalidInput, ModelFailed, UnusableFeed
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import ServingModel, Variable
from pipeline.process.cache_folder import cache_folder

MAX_ERROR_CHARS = 400

# "Exception from src/...cpp:84:", and "Check '...' failed at src/...cpp:151:" before a sentence or within it.
_PLACE = re.compile(r"(Caught exception: )?Exception from \S+:\d+:|Check '.*?' failed at \S+:\d+:")


def error_sentence(exc: Exception) -> str:
    """OpenVINO's own words; the check itself where it has none."""
    text = str(exc)
    told = " ".join(_PLACE.sub(" ", text).split()) or " ".join(text.split())
    return (told or type(exc).__name__)[:MAX_ERROR_CHARS].strip()


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


CPU = "CPU"
# Kernels kept, of which a shape of feeds needs a few. 5,000 if left alone: a 2 x 128 BERT then grows by 8 MB
# with each 100 shapes. 250 are as fast with 100 shapes in turn; with 100 a run takes half as long again.
KERNELS_KEPT = 250
_HINTS = {"fp32": "f32", "bf16": "bf16"}


def properties(core: openvino.Core, model: ServingModel, conf: PredictorConf) -> dict[str, Any]:
    """How the model is compiled. Raises ConfigError for what OpenVINO can't do here."""
    if resolve_device(conf) is not Device.CPU:
        raise ConfigError(
            f"device_type {conf.device_type} with devices {conf.devices!r}: OpenVINO runs models on the CPU "
            "here: set device_type: 0 and no devices, or remove engine: openvino"
        )
    tell_paddle_only(conf, "with engine: openvino")
    precision = _precision_in_force(core, model, conf)
    return {
        # Told always: left alone, OpenVINO takes bf16 where the CPU has it, and answers differ.
        "INFERENCE_PRECISION_HINT": _HINTS[precision],
        "INFERENCE_NUM_THREADS": conf.thread_num,
        # One run at a time, by all threads: see OpenVinoPredictor.
        "NUM_STREAMS": 1,
        # Pinned threads of several processes would meet on the same cores.
        "ENABLE_CPU_PINNING": False,
        "CPU_RUNTIME_CACHE_CAPACITY": KERNELS_KEPT,
    }


def _precision_in_force(core: openvino.Core, model: ServingModel, conf: PredictorConf) -> str:
    """`precision`, or fp32 where the CPU can't compute in it: a warning, ConfigError if `strict_precision`.

    So is `use_calib`, for which there is nothing here to calibrate.
    """
    hindrance = _hindrance(core, conf)
    why = hindrance or (
        conf.use_calib
        and "use_calib is not for OpenVINO: serve an int8 model (paddlewheel convert precision) as it is"
    )
    if why and conf.strict_precision:
        raise ConfigError(f"{why}; local_service_conf.strict_precision is set")
    precision = "fp32" if hindrance else conf.precision
    if why:
        log.warning("%s; %s runs in %s", why, model.program, precision)
    return precision


def _hindrance(core: openvino.Core, conf: PredictorConf) -> str | None:
    """Why the model can't be run in `precision`, with the remedy; None where it can."""
    if conf.precision == "int8":
        return (
            "precision int8 is in the model's file where OpenVINO runs it: serve one that was converted to "
            "it (paddlewheel convert precision)"
        )
    if conf.precision not in _HINTS:
        return f"precision {conf.precision} is not run by OpenVINO on the CPU: use fp32 or bf16"
    if conf.precision == "bf16" and "BF16" not in core.get_property(CPU, "OPTIMIZATION_CAPABILITIES"):
        return "precision bf16 needs a CPU with avx512_bf16 or amx_bf16, this has neither: use fp32"
    return None


# A BERT of 409 MB: 1.0 s of CPU to load, 0.4 s from here; one of 5 MB: 0.12 s and 0.05 s.
LEAST_BYTES = 64 << 20
MAX_BYTES = 8 << 30
_COMPLETE, _LOCK = "complete", "lock"
_OF_THE_CPU = ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES")


def compile_onnx(core: openvino.Core, files: Sequence[Path], device: str, properties: dict[str, Any]) -> Any:
    """The compiled model of the first of `files`, which are the graph and those with its weights."""
    program = str(files[0])
    try:
        size = sum(file.stat().st_size for file in files)
        if not LEAST_BYTES <= size <= MAX_BYTES // 2:
            return core.compile_model(program, device, properties)
        key = _key(files, [str(core.get_property(device, name)) for name in _OF_THE_CPU], properties)
        with _held(cache_folder("openvino") / key, size) as folder:
            compiled = core.compile_model(program, device, {**properties, "CACHE_DIR": str(folder)})
            (folder / _COMPLETE).touch()
            return compiled
    except (OSError, RuntimeError) as exc:
        # Also for a model that can't be compiled at all: that is told then.
        log.info("%s is compiled without the cache (%s)", program, exc)
        return core.compile_model(program, device, properties)


@contextmanager
def _held(folder: Path, size: int) -> Iterator[Path]:
    """The folder, which no other process writes meanwhile; empty where none has completed it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not (folder / _COMPLETE).exists():
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / _COMPLETE).exists():
                _clear(folder)
                _make_room(folder, size)
        os.utime(folder)
        yield folder


def _clear(folder: Path) -> None:
    """Remove what a process has left that died while it wrote."""
    for file in folder.iterdir():
        if file.name != _LOCK:
            file.unlink()


def _make_room(folder: Path, size: int) -> None:
    """Remove the folders used longest ago, until `size` more bytes fit; a loaded model keeps its file."""
    others = sorted((other for other in folder.parent.iterdir() if other != folder), key=_last_use)
    taken = {other: sum(file.stat().st_size for file in other.iterdir()) for other in others}
    for other in others:
        if sum(taken.values()) + size <= MAX_BYTES:
            return
        shutil.rmtree(other, ignore_errors=True)
        del taken[other]


def _last_use(folder: Path) -> float:
    return folder.stat().st_mtime


def _key(files: Sequence[Path], cpu: Sequence[str], properties: dict[str, Any]) -> str:
    """Of the files as they are, and of all that they are compiled by and for.

    2026.4 itself takes a file that was compiled for f32 for bf16, too, and then answers with nan or crashes.
    """
    states: list[object] = [openvino.__version__, cpu, sorted(properties.items())]
    for file in files:
        of = file.stat()
        states.append((str(file.resolve()), of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns))
    return hashlib.sha256(repr(states).encode()).hexdigest()[:32]
