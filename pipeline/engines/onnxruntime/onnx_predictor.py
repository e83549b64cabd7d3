"""Runs ONNX models with ONNX Runtime."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime

from pipeline.engines.base import PredictorConf
from pipeline.engines.device import Device, resolve_device, select_card, tell_paddle_only
from pipeline.engines.dynamic_shape import DynamicShapes, Shapes
from pipeline.engines.feeds import Array, as_texts, check_feeds, check_forms, shares_runs
from pipeline.engines.fetches import feeds_of_graph, measured_fetches, select_fetches
from pipeline.engines.refusals import Beyond, refusal
from pipeline.engines.tensorrt import WORKSPACE_BYTES, cache_folder, profile_shapes
from pipeline.errors import ConfigError, InvalidInput, ModelFailed
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import ServingModel

log = logging.getLogger(__name__)

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
Provider = tuple[str, dict[str, str]]

_FATAL = 4  # everything below comes as an exception, too, and would be on standard error besides
_PRECISION_OPTIONS = {"fp16": "trt_fp16_enable", "bf16": "trt_bf16_enable", "int8": "trt_int8_enable"}


def session_options(conf: PredictorConf) -> onnxruntime.SessionOptions:
    """Options of one session. Threads sleep while they wait: spinning ones starve the front."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = conf.thread_num
    options.inter_op_num_threads = conf.inter_op_thread_num
    modes = onnxruntime.ExecutionMode
    options.execution_mode = modes.ORT_PARALLEL if conf.inter_op_thread_num > 1 else modes.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    levels = onnxruntime.GraphOptimizationLevel
    # Basic ones compute the same numbers; the others fuse operators, and results differ in their last bits.
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if conf.ir_optim else levels.ORT_ENABLE_BASIC
    options.enable_mem_reuse = conf.mem_optim
    options.enable_cpu_mem_arena = conf.mem_optim
    options.enable_mem_pattern = False  # one is kept for each shape ever fed, without a bound
    options.log_severity_level = _FATAL
    return options


class SessionPlan(NamedTuple):
    """A session that a model needs: its execution providers, the one asked for first, and the TensorRT shapes
    that it is for; None where it takes all."""

    providers: list[Provider]
    shapes: DynamicShapes | None = None


def session_plans(
    model: ServingModel,
    conf: PredictorConf,
    device: Device,
    *,
    instance_index: int = 0,
    dynamic_shapes: DynamicShapes | None = None,
) -> list[SessionPlan]:
    """One session, or one for each length class of TensorRT. Raises ConfigError.

    An engine may hold several profiles, but ONNX Runtime runs the first alone
    (https://github.com/microsoft/onnxruntime/pull/31624), so that a session has one.
    """
    tell_paddle_only(conf, "on an ONNX model")
    if device is not Device.TENSORRT and (conf.precision != "fp32" or conf.use_calib):
        _tell_arithmetic(model, conf, device)
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
        kept_in = folder / f"profile-{number}" if len(profiles) > 1 else folder
        kept_in.mkdir(exist_ok=True)
        options = card | _tensorrt(conf, kept_in) | (_profile(model, profile) if profile else {})
        plans.append(SessionPlan([(TENSORRT, options), (CUDA, card), (CPU, {})], profile))
    return plans


def refuse_unavailable(device: Device) -> None:
    """Raise ConfigError, with the remedy, for a device that this build has no provider for."""
    wanted = {Device.CPU: CPU, Device.GPU: CUDA, Device.TENSORRT: TENSORRT}[device]
    if wanted not in onnxruntime.get_available_providers():
        raise ConfigError(
            f"device_type {1 if device is Device.GPU else 2} needs {wanted}, which this build of ONNX "
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
    # A file is a Paddle program's, whose inner tensors go by other names here.
    names = {feed.name for feed in model.feeds} if shapes.file else shapes.min.keys()
    bounds = {"min": shapes.min, "opt": shapes.opt, "max": shapes.max}
    return {
        f"trt_profile_{bound}_shapes": _as_text({n: of_tensors[n] for n in of_tensors if n in names})
        for bound, of_tensors in bounds.items()
    }


def _as_text(shapes: Shapes) -> str:
    """`input_ids:1x16,attention_mask:1x16`, as ONNX Runtime reads it."""
    return ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())


def _tell_arithmetic(model: ServingModel, conf: PredictorConf, device: Device) -> None:
    """`precision` and `use_calib` have no effect here: a warning, or ConfigError with `strict_precision`."""
    what = "use_calib: true" if conf.use_calib else f"precision {conf.precision}"
    why = (
        f"{what} is not for ONNX Runtime on {device.value}: the arithmetic of an ONNX model is in its file, "
        "so serve one that was converted to it, or set device_type: 2"
    )
    if conf.strict_precision:
        raise ConfigError(f"{why}; local_service_conf.strict_precision is set")
    log.warning("%s; %s runs as it is", why, model.program)


MAX_ERROR_CHARS = 400

# "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : the sentence", and the source file's place before a sentence.
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_PLACE = re.compile(r"/\S+:\d+ [^()]*\([^)]*\) (const )?")
_LATER_OPSET = re.compile(r"Opset (\d+) is under development.* till opset (\d+)")
_NO_OPERATOR = re.compile(
    r"No Op registered for (\S+) with|([\w.]*:?\w+)\(-?\d+\) is not a registered function"
)
# Gather's own words, and those of GatherElements.
_BEYOND = (
    re.compile(
        r"idx=(?P<given>-?\d+) must be within the inclusive range \[(?P<least>-?\d+),(?P<most>-?\d+)\]"
    ),
    re.compile(r"within bounds \[(?P<least>-?\d+) ?, ?(?P<most>-?\d+)\].*?Actual value is (?P<given>-?\d+)"),
)


def looked_up(exc: Exception) -> Beyond | None:
    """The number that a run looked up in vain; None where it failed of something else."""
    found = next((match for pattern in _BEYOND if (match := pattern.search(str(exc)))), None)
    return found and Beyond(int(found["given"]), int(found["least"]), int(found["most"]))


def error_sentence(exc: Exception) -> str:
    """ONNX Runtime's own sentence."""
    text = " ".join(_PLACE.sub("", _CODE.sub("", str(exc))).split())
    return (text or type(exc).__name__)[:MAX_ERROR_CHARS].strip()


def load_sentence(program: Path, exc: Exception) -> str:
    """Why a model can't be loaded."""
    import onnxruntime

    engine, text = f"ONNX Runtime {onnxruntime.__version__}", " ".join(str(exc).split())
    if found := _LATER_OPSET.search(text):
        return (
            f"{program} is of opset {found[1]}, but {engine} takes up to {found[2]}: export it again at that"
        )
    if found := _NO_OPERATOR.search(text):
        return (
            f"{program} has the operator {found[1] or found[2]}, which {engine} lacks: export the model with "
            "operators of the standard"
        )
    return f"{program} can't be loaded by {engine}: {error_sentence(exc)}"


class OnnxPredictor:
    """A session of an ONNX model, or one for each length class of TensorRT.

    It releases the GIL while it runs, and takes any number of threads.
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
        self.feeds = feeds_of_graph(model, facts.feeds, facts.fetches)
        self.fetches = select_fetches(model.fetches, fetch_list or conf.fetch_list)
        device = resolve_device(conf)
        refuse_unavailable(device)
        plans = session_plans(
            model, conf, device, instance_index=instance_index, dynamic_shapes=dynamic_shapes
        )
        self._sessions = [(plan.shapes, _session(model, conf, plan.providers)) for plan in plans]
        self._texts = [feed.alias for feed in self.feeds if feed.dtype == "string"]
        self._names = {feed.alias: feed.name for feed in self.feeds}
        self._outputs = {fetch.alias: fetch.name for fetch in self.fetches}
        self.fetches = measured_fetches(model.program, self, self.fetches, facts.fetches, self.run)
        self.merges = shares_runs(model.program, facts.finder, (*self.feeds, *self.fetches))

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays by alias in and out. Raises InvalidInput, or ModelFailed with ONNX Runtime's reason."""
        sessions = self._sessions
        if not sessions:
            raise ModelFailed("the predictor is closed")
        checked = check_feeds(self.feeds, feeds)
        for alias in self._texts:
            checked[alias] = as_texts(alias, checked[alias])
        named = {name: checked[alias] for alias, name in self._names.items()}
        session = _session_for(sessions, {name: array.shape for name, array in named.items()})
        try:
            fetched = session.run(list(self._outputs.values()), named)
        except Exception as exc:
            reason = error_sentence(exc)
            raise refusal("ONNX Runtime", self.feeds, checked, reason, looked_up(exc)) from exc
        return dict(zip(self._outputs, map(np.asarray, fetched), strict=True))

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Raise InvalidInput for feeds whose names, types, shapes or dtypes are not the model's."""
        check_forms(self.feeds, feeds)

    def close(self) -> None:
        """Free the model as soon as no run is under way."""
        self._sessions = []


def _session_for(
    sessions: Sequence[tuple[DynamicShapes | None, onnxruntime.InferenceSession]], shapes: Shapes
) -> onnxruntime.InferenceSession:
    """The first session whose ranges hold these shapes of the feeds. Raises InvalidInput where none does.

    One alone takes all shapes, or says itself which it does not.
    """
    if len(sessions) == 1:
        return sessions[0][1]
    for described, session in sessions:
        if described is None or described.hold(shapes):
            return session
    given = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
    raise InvalidInput(f"none of the {len(sessions)} TensorRT profiles (tensorrt.shapes) takes {given}")


def _session(
    model: ServingModel, conf: PredictorConf, asked: Sequence[tuple[str, dict[str, str]]]
) -> onnxruntime.InferenceSession:
    try:
        session = onnxruntime.InferenceSession(
            str(model.program), sess_options=session_options(conf), providers=list(asked)
        )
    except Exception as exc:
        raise ConfigError(load_sentence(model.program, exc)) from exc
    if session.get_providers()[0] != asked[0][0]:  # it goes on with the next, in silence
        raise ConfigError(
            f"{asked[0][0]} can't be started on this machine: see that its libraries and a driver are found "
            "(paddlewheel doctor), or set device_type: 0"
        )
    session.disable_fallback()  # a failed run would be tried on the CPU, by a new session
    return session
