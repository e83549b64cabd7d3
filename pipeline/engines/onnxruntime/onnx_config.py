"""From `local_service_conf` to ONNX Runtime's session options and execution providers, and what can't be."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

import onnxruntime

from pipeline.engines.base import PredictorConf
from pipeline.engines.device import Device, select_card, tell_paddle_only
from pipeline.engines.dynamic_shape import DynamicShapes, Shapes
from pipeline.engines.tensorrt import WORKSPACE_BYTES, cache_folder, profile_shapes
from pipeline.errors import ConfigError
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
