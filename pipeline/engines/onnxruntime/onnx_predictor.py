"""Runs ONNX models with ONNX Runtime."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

from pipeline.engines.base import PredictorConf
from pipeline.engines.device import (
    WORKSPACE_BYTES,
    Device,
    cache_folder,
    profile_shapes,
    resolve_device,
    select_card,
    warn_of_paddle_keys,
)
from pipeline.engines.dynamic_shape import DynamicShapes, Shapes
from pipeline.engines.feeds import Array, as_texts, check_feeds, check_forms, shares_runs
from pipeline.engines.fetches import get_graph_feeds, measure_fetches, select_fetches
from pipeline.engines.onnxruntime.bfloat16 import run_bfloat16
from pipeline.engines.onnxruntime.escaped_texts import escape_bytes, is_utf8, unescape_bytes
from pipeline.engines.refusals import OutOfRange, build_run_error
from pipeline.errors import ConfigError, InvalidInput, ModelFailed
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import ServingModel

log = logging.getLogger(__name__)

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
Provider = tuple[str, dict[str, str]]

_FATAL = 4  # less severe messages also come as exceptions, and would be on standard error twice
_PRECISION_OPTIONS = {"fp16": "trt_fp16_enable", "bf16": "trt_bf16_enable", "int8": "trt_int8_enable"}


def session_options(conf: PredictorConf) -> onnxruntime.SessionOptions:
    """Return ONNX Runtime's session options for a model's settings in config.yml.

    Threads sleep while they wait: spinning threads starve the front process.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = conf.thread_num
    options.inter_op_num_threads = conf.inter_op_thread_num
    modes = onnxruntime.ExecutionMode
    options.execution_mode = modes.ORT_PARALLEL if conf.inter_op_thread_num > 1 else modes.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    levels = onnxruntime.GraphOptimizationLevel
    # Basic optimisations are exact; the others fuse operators, and results differ in their last bits.
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if conf.ir_optim else levels.ORT_ENABLE_BASIC
    options.enable_mem_reuse = conf.mem_optim
    options.enable_cpu_mem_arena = conf.mem_optim
    options.enable_mem_pattern = False  # ONNX Runtime stores a pattern for each shape, without a bound
    options.log_severity_level = _FATAL
    return options


class SessionPlan(NamedTuple):
    """Execution providers and TensorRT shape ranges of one ONNX Runtime session."""

    providers: list[Provider]  # execution providers, the requested one first
    shapes: DynamicShapes | None = None  # TensorRT shapes of the session; None: any shape


def session_plans(
    model: ServingModel,
    conf: PredictorConf,
    device: Device,
    *,
    instance_index: int = 0,
    dynamic_shapes: DynamicShapes | None = None,
) -> list[SessionPlan]:
    """Return the settings of a model's ONNX Runtime sessions: one, or one per length class of TensorRT.

    A TensorRT engine may hold several profiles, but ONNX Runtime only runs the first one
    (https://github.com/microsoft/onnxruntime/pull/31624). So each session has a single profile. Raises
    ConfigError.
    """
    warn_of_paddle_keys(conf, "on an ONNX model")
    if device is not Device.TENSORRT and (conf.precision != "fp32" or conf.use_calib):
        _warn_of_precision(model, conf, device)
    if device is Device.CPU:
        return [SessionPlan([(CPU, {})])]
    card = {"device_id": str(select_card(conf, instance_index))}
    if device is Device.GPU:
        return [SessionPlan([(CUDA, card), (CPU, {})])]
    folder = cache_folder(model, conf)
    shapes = _checked_shapes(model, conf, dynamic_shapes)
    profiles = shapes.profiles if shapes is not None else (None,)
    plans = []
    for number, profile in enumerate(profiles, 1):
        # Engines of the same model have the same file name, whatever their shapes.
        cache_dir = folder / f"profile-{number}" if len(profiles) > 1 else folder
        cache_dir.mkdir(exist_ok=True)
        options = card | _tensorrt(conf, cache_dir) | (_profile(model, profile) if profile else {})
        plans.append(SessionPlan([(TENSORRT, options), (CUDA, card), (CPU, {})], profile))
    return plans


def refuse_unavailable(device: Device) -> None:
    """Raise ConfigError, with a hint, for a device whose execution provider this ONNX Runtime lacks."""
    provider = {Device.CPU: CPU, Device.GPU: CUDA, Device.TENSORRT: TENSORRT}[device]
    if provider not in onnxruntime.get_available_providers():
        raise ConfigError(
            f"device_type {1 if device is Device.GPU else 2} needs {provider}, which this build of ONNX "
            f"Runtime {onnxruntime.__version__} lacks: install onnxruntime-gpu in place of onnxruntime, or "
            "set device_type: 0"
        )


def _checked_shapes(
    model: ServingModel, conf: PredictorConf, dynamic_shapes: DynamicShapes | None
) -> DynamicShapes | None:
    if conf.use_calib:
        raise ConfigError(
            "use_calib is Paddle's own: for int8 serve an ONNX model with QuantizeLinear in it, and remove it"
        )
    if conf.tensorrt.auto_collect and dynamic_shapes is None and not conf.tensorrt.shapes:
        raise ConfigError(
            "tensorrt.auto_collect is for .pdmodel programs: give min, opt and max of the feeds in "
            "set_dynamic_shape_info or tensorrt.shapes"
        )
    return profile_shapes(model, conf, dynamic_shapes)


def _tensorrt(conf: PredictorConf, folder: Path) -> dict[str, str]:
    precision = conf.tensorrt.precision or conf.precision
    options = {
        "trt_max_workspace_size": str(WORKSPACE_BYTES),
        "trt_min_subgraph_size": str(conf.min_subgraph_size),
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(folder),
    }
    if precision in _PRECISION_OPTIONS:
        options[_PRECISION_OPTIONS[precision]] = "1"
    return options


def _profile(model: ServingModel, shapes: DynamicShapes) -> dict[str, str]:
    # A file holds the shapes of a Paddle program, whose inner tensors have other names in the ONNX model.
    names = {feed.name for feed in model.feeds} if shapes.file else shapes.min.keys()
    bounds = {"min": shapes.min, "opt": shapes.opt, "max": shapes.max}
    return {
        f"trt_profile_{bound}_shapes": _format_shapes({n: ranges[n] for n in ranges if n in names})
        for bound, ranges in bounds.items()
    }


def _format_shapes(shapes: Shapes) -> str:
    """Format shapes for ONNX Runtime: `input_ids:1x16,attention_mask:1x16`."""
    return ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())


def _warn_of_precision(model: ServingModel, conf: PredictorConf, device: Device) -> None:
    """Log a warning that `precision` or `use_calib` has no effect.

    Raises ConfigError with `strict_precision`.
    """
    setting = "use_calib: true" if conf.use_calib else f"precision {conf.precision}"
    reason = (
        f"{setting} is not for ONNX Runtime on {device.value}: the arithmetic of an ONNX model is in its "
        "file, so serve one that was converted to it, or set device_type: 2"
    )
    if conf.strict_precision:
        raise ConfigError(f"{reason}; local_service_conf.strict_precision is set")
    log.warning("%s; %s runs as it is", reason, model.program)


MAX_ERROR_CHARS = 400

# "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : MESSAGE", and the location in the source file before MESSAGE.
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_PLACE = re.compile(r"/\S+:\d+ [^()]*\([^)]*\) (const )?")
_LATER_OPSET = re.compile(r"Opset (\d+) is under development.* till opset (\d+)")
_NO_OPERATOR = re.compile(
    r"No Op registered for (\S+) with|([\w.]*:?\w+)\(-?\d+\) is not a registered function"
)
# Messages of Gather and of GatherElements.
_OUT_OF_RANGE = (
    re.compile(r"idx=(?P<value>-?\d+) must be within the inclusive range \[(?P<low>-?\d+),(?P<high>-?\d+)\]"),
    re.compile(r"within bounds \[(?P<low>-?\d+) ?, ?(?P<high>-?\d+)\].*?Actual value is (?P<value>-?\d+)"),
)


def parse_out_of_range(exc: Exception) -> OutOfRange | None:
    """Return the index that an ONNX Runtime error reports as beyond a lookup table; None for other errors."""
    matches = (pattern.search(str(exc)) for pattern in _OUT_OF_RANGE)
    match = next(filter(None, matches), None)
    return match and OutOfRange(int(match["value"]), int(match["low"]), int(match["high"]))


def error_sentence(exc: Exception) -> str:
    """Return the message of an ONNX Runtime exception without its prefixes."""
    text = " ".join(_PLACE.sub("", _CODE.sub("", str(exc))).split())
    return (text or type(exc).__name__)[:MAX_ERROR_CHARS].strip()


def load_sentence(program: Path, exc: Exception) -> str:
    """Return a message that explains why ONNX Runtime can't load a model file, with any known hint."""
    import onnxruntime

    engine, text = f"ONNX Runtime {onnxruntime.__version__}", " ".join(str(exc).split())
    if match := _LATER_OPSET.search(text):
        return (
            f"{program} is of opset {match[1]}, but {engine} takes up to {match[2]}: export it again at that"
        )
    if match := _NO_OPERATOR.search(text):
        return (
            f"{program} has the operator {match[1] or match[2]}, which {engine} lacks: export the model with "
            "operators of the standard"
        )
    return f"{program} can't be loaded by {engine}: {error_sentence(exc)}"


class OnnxPredictor:
    """A model in ONNX Runtime: one session, or one for each length class of TensorRT.

    Inference releases the GIL, and any number of threads may run it.
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
        facts = inspect_onnx(model.program)
        self.feeds = get_graph_feeds(model, facts.feeds, facts.fetches, takes_bfloat16=True)
        self._optional = facts.optional_feeds
        self.fetches = select_fetches(model.fetches, fetch_list or conf.fetch_list)
        device = resolve_device(conf)
        refuse_unavailable(device)
        plans = session_plans(
            model, conf, device, instance_index=instance_index, dynamic_shapes=dynamic_shapes
        )
        self._sessions = [(plan.shapes, _session(model, conf, plan.providers)) for plan in plans]
        self._lenient = conf.lenient_feeds
        self._texts = [feed.alias for feed in self.feeds if feed.dtype == "string"]
        self._names = {feed.alias: feed.name for feed in self.feeds}
        self._bfloat16 = [v.name for v in (*self.feeds, *self.fetches) if v.dtype == "bfloat16"]
        self._outputs = {fetch.alias: fetch.name for fetch in self.fetches}
        self.fetches = measure_fetches(model.program, self, self.fetches, facts.fetches, self.run)
        self.merges = shares_runs(model.program, facts.finder, (*self.feeds, *self.fetches))

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run inference on input arrays by alias. Returns output arrays by alias.

        Raises InvalidInput and ModelFailed.
        """
        sessions = self._sessions
        if not sessions:
            raise ModelFailed("the predictor is closed")
        checked = check_feeds(self.feeds, feeds, allow_empty=self._lenient)
        has_escapes = False
        for alias in self._texts:
            if self._lenient and not is_utf8(checked[alias]):
                checked[alias], has_escapes = escape_bytes(checked[alias]), True
            else:
                checked[alias] = as_texts(alias, checked[alias])
        named = {name: checked[alias] for alias, name in self._names.items()}
        if self._optional:
            named |= check_feeds([variable for variable in self._optional if variable.alias in feeds], feeds)
        session = _session_for(sessions, {name: array.shape for name, array in named.items()})
        try:
            fetched = self._run_session(session, named)
        except Exception as exc:
            reason = error_sentence(exc)
            out_of_range = parse_out_of_range(exc)
            raise build_run_error("ONNX Runtime", self.feeds, checked, reason, out_of_range) from exc
        arrays = [unescape_bytes(array) if has_escapes else np.asarray(array) for array in fetched]
        return dict(zip(self._outputs, arrays, strict=True))

    def _run_session(self, session: onnxruntime.InferenceSession, named: Mapping[str, Array]) -> list[Any]:
        outputs = list(self._outputs.values())
        if self._bfloat16:
            return run_bfloat16(session, outputs, named, self._bfloat16)
        fetched: list[Any] = session.run(outputs, named)
        return fetched

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Raise InvalidInput for inputs whose names, types, shapes or dtypes do not fit the model."""
        check_forms(self.feeds, feeds, allow_empty=self._lenient)

    def close(self) -> None:
        """Free the model as soon as no inference is in progress."""
        self._sessions = []


def _session_for(
    sessions: Sequence[tuple[DynamicShapes | None, onnxruntime.InferenceSession]], shapes: Shapes
) -> onnxruntime.InferenceSession:
    """Return the first session whose TensorRT ranges include the inputs' shapes.

    Raises InvalidInput if no session does. If the model has a single session, it is returned for any shape,
    and reports a wrong shape itself.
    """
    if len(sessions) == 1:
        return sessions[0][1]
    for described, session in sessions:
        if described is None or described.contain(shapes):
            return session
    feed_shapes = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
    raise InvalidInput(f"none of the {len(sessions)} TensorRT profiles (tensorrt.shapes) takes {feed_shapes}")


def _session(
    model: ServingModel, conf: PredictorConf, providers: Sequence[tuple[str, dict[str, str]]]
) -> onnxruntime.InferenceSession:
    try:
        session = onnxruntime.InferenceSession(
            str(model.program), sess_options=session_options(conf), providers=list(providers)
        )
    except Exception as exc:
        raise ConfigError(load_sentence(model.program, exc)) from exc
    if session.get_providers()[0] != providers[0][0]:  # it goes on with the next, in silence
        raise ConfigError(
            f"{providers[0][0]} can't be started on this machine: see that its libraries and a driver are "
            "found (paddlewheel doctor), or set device_type: 0"
        )
    session.disable_fallback()  # a failed run would be tried on the CPU, by a new session
    return session
