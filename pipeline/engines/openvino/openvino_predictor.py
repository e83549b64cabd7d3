"""Runs ONNX models, OpenVINO IR files and Paddle's .pdmodel files with OpenVINO."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from pipeline.engines.base import PredictorConf
from pipeline.engines.device import Device, resolve_device, warn_of_paddle_keys
from pipeline.engines.dynamic_shape import DynamicShapes
from pipeline.engines.feeds import Array, check_feeds, check_forms, shares_runs
from pipeline.engines.fetches import get_graph_feeds, measure_fetches, select_fetches
from pipeline.engines.openvino.graph import GraphFacts, read_graph_facts, read_onnx_facts
from pipeline.engines.refusals import build_run_error
from pipeline.errors import ConfigError, InvalidInput, ModelFailed, UnusableFeed
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import ServingModel, Variable
from pipeline.process.folders import cache_folder

# With this package, OpenVINO reports its import over the network and stores an id in the home folder, without
# consent. OpenVINO works without the package.
cast(dict[str, Any], sys.modules).setdefault("openvino_telemetry", None)
import openvino  # noqa: E402

MAX_ERROR_CHARS = 400

# "Exception from src/...cpp:84:", and "Check '...' failed at src/...cpp:151:" before a sentence or within it.
_PLACE = re.compile(r"(Caught exception: )?Exception from \S+:\d+:|Check '.*?' failed at \S+:\d+:")


def error_sentence(exc: Exception) -> str:
    """Return the message of an OpenVINO exception without source locations, or else the failed check."""
    text = str(exc)
    message = " ".join(_PLACE.sub(" ", text).split()) or " ".join(text.split())
    return (message or type(exc).__name__)[:MAX_ERROR_CHARS].strip()


log = logging.getLogger(__name__)

_INT32_END = 1 << 31
_WIDE = {"int64", "uint32", "uint64"}


class OpenVinoPredictor:
    """A model compiled by OpenVINO, which all threads share. Inference releases the GIL.

    Runs take turns, and each uses all `thread_num` threads. After a failed run, OpenVINO 2026.4 leaves the
    shapes of that run in its graph, and the next run may return another request's outputs. So runs never
    overlap, and the model is compiled again after a failure.
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
        self.precision = "bf16" if settings["INFERENCE_PRECISION_HINT"] == _HINTS["bf16"] else "fp32"
        facts, compile_model = _read_graph(core, model, settings)
        self.feeds = get_graph_feeds(model, facts.feeds, facts.fetches)
        _refuse_texts(model, self.feeds)
        self.fetches = select_fetches(model.fetches, fetch_list or conf.fetch_list)
        self._model = model
        self._compile = compile_model
        self._names = {feed.alias: feed.name for feed in self.feeds}
        self._outputs = {fetch.alias: fetch.name for fetch in self.fetches}
        self._limits = _get_number_limits(self.feeds, facts.id_limits)
        self._turn = threading.Lock()
        self._request: Any = None  # infer request of the compiled model; None after a failed run
        self._closed = False
        try:
            self._request = compile_model().create_infer_request()
        except RuntimeError as exc:
            raise ConfigError(_cant_be_loaded(model, exc)) from exc
        self.fetches = measure_fetches(model.program, self, self.fetches, facts.fetches, self.run)
        self.merges = shares_runs(model.program, facts.finder, (*self.feeds, *self.fetches))

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run inference on input arrays by alias. Returns output arrays by alias.

        Raises InvalidInput and ModelFailed.
        """
        checked = check_feeds(self.feeds, feeds)
        for alias, limit in self._limits.items():
            limit.check(alias, checked[alias])
        # The reference lives until the run ends: its tensors use the arrays' memory without a reference.
        fed = {name: _writable(checked[alias]) for alias, name in self._names.items()}
        with self._turn:
            request = self._get_request()
            try:
                for name, array in fed.items():
                    request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
                # Not `infer`: with one thread, 2026.4 swallows its errors and returns the previous outputs.
                request.start_async()
                request.wait()
                # Copies: the next run overwrites the output tensors.
                return {
                    alias: np.array(request.get_tensor(name).data) for alias, name in self._outputs.items()
                }
            except Exception as exc:
                self._request = None
                with suppress(ModelFailed):  # the next run tries again
                    self._get_request()
                raise build_run_error("OpenVINO", self.feeds, checked, error_sentence(exc)) from exc

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Raise InvalidInput for inputs whose names, types, shapes or dtypes do not fit the model."""
        check_forms(self.feeds, feeds)

    def close(self) -> None:
        """Free the model as soon as no inference is in progress."""
        with self._turn:
            self._request, self._closed = None, True

    def _get_request(self) -> Any:
        """Return OpenVINO's infer request; compile the model again after a failed inference.

        Raises ModelFailed.
        """
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
    """Return the inputs, outputs and operators of a model, and a function that compiles the model.

    settings: OpenVINO's compile properties. Raises ConfigError.
    """
    if model.format == "onnx":
        folder, names = model.program.parent, inspect_onnx(model.program).data_files
        files = [model.program, *(folder / name for name in names)]
        return read_onnx_facts(model), lambda: compile_onnx(core, files, CPU, settings)
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
    """Return the array itself, or a copy of a read-only array, which OpenVINO does not accept."""
    return array if array.flags.writeable else array.copy()


class _NumberLimit(NamedTuple):
    """The range of numbers that an integer input of the model may hold.

    OpenVINO does not check the range: an id beyond its table yields zeros, and 64-bit numbers lose their
    upper half.
    """

    end: int  # numbers are in [-end, end)
    reason: str
    error: type[InvalidInput]

    def check(self, alias: str, array: Array) -> None:
        """Raise the limit's error unless all numbers of the array are in [-end, end)."""
        if int(array.view(f"u{array.itemsize}").max()) < self.end:
            return
        low, high = int(array.min()), int(array.max())
        if low < -self.end or high >= self.end:
            raise self.error(f"feed {alias!r} holds {high if high >= self.end else low}, {self.reason}")


def _get_number_limits(feeds: Sequence[Variable], id_limits: Mapping[str, int]) -> dict[str, _NumberLimit]:
    """Return the range of numbers that each integer input may hold, by alias.

    id_limits: number of rows in the embedding table, by the name of the input of ids.
    """
    int32 = _NumberLimit(_INT32_END, "which is beyond the int32 that OpenVINO computes with", InvalidInput)
    limits = {feed.alias: int32 for feed in feeds if feed.dtype in _WIDE}
    for feed in feeds:
        if feed.name in id_limits and feed.numpy_dtype.kind in "iu":
            rows = id_limits[feed.name]
            # UnusableFeed, the error of the other engines, which detect it during the run.
            limits[feed.alias] = _NumberLimit(
                rows, f"and the model has {rows} rows to look it up in", UnusableFeed
            )
    return limits


CPU = "CPU"
# Cached kernels; each shape needs a few. With OpenVINO's default of 5,000, a 2 x 128 BERT grows by 8 MB per
# 100 shapes. With 100 shapes in turn, 250 kernels are as fast, and 100 kernels take 1.5 times as long.
MAX_KERNELS = 250
_HINTS = {"fp32": "f32", "bf16": "bf16"}


def properties(core: openvino.Core, model: ServingModel, conf: PredictorConf) -> dict[str, Any]:
    """Return OpenVINO's compile properties for a model's settings.

    Raises ConfigError for unsupported settings.
    """
    if resolve_device(conf) is not Device.CPU:
        raise ConfigError(
            f"device_type {conf.device_type} with devices {conf.devices!r}: OpenVINO runs models on the CPU "
            "here: set device_type: 0 and no devices, or remove engine: openvino"
        )
    warn_of_paddle_keys(conf, "with engine: openvino")
    precision = _precision_in_force(core, model, conf)
    return {
        # Always set: by default OpenVINO uses bf16 if the CPU has it, and outputs differ.
        "INFERENCE_PRECISION_HINT": _HINTS[precision],
        "INFERENCE_NUM_THREADS": conf.thread_num,
        # One run at a time, by all threads: see OpenVinoPredictor.
        "NUM_STREAMS": 1,
        # Pinned threads of several processes would share the same cores.
        "ENABLE_CPU_PINNING": False,
        "CPU_RUNTIME_CACHE_CAPACITY": MAX_KERNELS,
    }


def _precision_in_force(core: openvino.Core, model: ServingModel, conf: PredictorConf) -> str:
    """Return the precision in which the model runs: `precision`, or fp32 with a warning if the CPU lacks it.

    `use_calib` also causes a warning, because OpenVINO has nothing to calibrate. With `strict_precision`,
    both cases raise ConfigError.
    """
    unsupported = _explain_unsupported_precision(core, conf)
    reason = unsupported or (
        conf.use_calib
        and "use_calib is not for OpenVINO: serve an int8 model (paddlewheel convert precision) as it is"
    )
    if reason and conf.strict_precision:
        raise ConfigError(f"{reason}; local_service_conf.strict_precision is set")
    precision = "fp32" if unsupported else conf.precision
    if reason:
        log.warning("%s; %s runs in %s", reason, model.program, precision)
    return precision


def _explain_unsupported_precision(core: openvino.Core, conf: PredictorConf) -> str | None:
    """Return why the model can't run in the configured precision, with a hint; None if it works."""
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


# Models whose compiled form is cached. A BERT of 409 MB loads in 1.0 s of CPU, and in 0.4 s from the cache.
# One of 5 MB takes 0.12 s and 0.05 s.
MIN_BYTES = 64 << 20
MAX_BYTES = 8 << 30  # of the cache
_COMPLETE, _LOCK = "complete", "lock"
_CPU_PROPERTIES = ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES")


def compile_onnx(core: openvino.Core, files: Sequence[Path], device: str, properties: dict[str, Any]) -> Any:
    """Compile the ONNX model `files[0]` and return it; a large model is cached on disk.

    The other files hold its weights. properties: OpenVINO's compile properties.
    """
    program = str(files[0])
    try:
        size = sum(file.stat().st_size for file in files)
        if not MIN_BYTES <= size <= MAX_BYTES // 2:
            return core.compile_model(program, device, properties)
        key = _get_cache_key(
            files, [str(core.get_property(device, name)) for name in _CPU_PROPERTIES], properties
        )
        with _locked(cache_folder("openvino") / key, size) as folder:
            compiled = core.compile_model(program, device, {**properties, "CACHE_DIR": str(folder)})
            (folder / _COMPLETE).touch()
            return compiled
    except (OSError, RuntimeError) as exc:
        # If the model can't be compiled at all, the second attempt raises the error.
        log.info("%s is compiled without the cache (%s)", program, exc)
        return core.compile_model(program, device, properties)


@contextmanager
def _locked(folder: Path, size: int) -> Iterator[Path]:
    """Lock a cache folder against writers of other processes within a `with` block, and yield the folder.

    An incomplete folder is emptied first. size: the model's size in bytes; room for it is made in the cache.
    """
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
    """Remove the incomplete files that a process left in a cache folder when it died."""
    for file in folder.iterdir():
        if file.name != _LOCK:
            file.unlink()


def _make_room(folder: Path, size: int) -> None:
    """Remove the least recently used cache folders until `size` bytes fit into the cache.

    Loaded models keep their open files.
    """
    oldest_first = sorted((other for other in folder.parent.iterdir() if other != folder), key=_last_use)
    sizes = {other: sum(file.stat().st_size for file in other.iterdir()) for other in oldest_first}
    for other in oldest_first:
        if sum(sizes.values()) + size <= MAX_BYTES:
            return
        shutil.rmtree(other, ignore_errors=True)
        del sizes[other]


def _last_use(folder: Path) -> float:
    return folder.stat().st_mtime


def _get_cache_key(files: Sequence[Path], cpu: Sequence[str], properties: dict[str, Any]) -> str:
    """Return a hash of the model files' state, the OpenVINO version, the CPU and the compile properties.

    The properties are included because OpenVINO 2026.4 would reuse a file compiled for f32 for bf16, and then
    return nan or crash.
    """
    states: list[object] = [openvino.__version__, cpu, sorted(properties.items())]
    for file in files:
        stat = file.stat()
        states.append((str(file.resolve()), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    return hashlib.sha256(repr(states).encode()).hexdigest()[:32]
