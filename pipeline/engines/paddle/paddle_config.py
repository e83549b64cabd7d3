"""Builds the configuration of a Paddle predictor (`paddle.inference.Config`) from config.yml.

Settings that the installed Paddle or the machine lacks are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pipeline.engines.base import PredictorConf
from pipeline.engines.device import (
    WORKSPACE_BYTES,
    Device,
    cache_folder,
    profile_shapes,
    resolve_device,
    select_card,
)
from pipeline.engines.dynamic_shape import DynamicShapes
from pipeline.engines.paddle.paddle_import import inference, paddle
from pipeline.engines.paddle.program import Half, run_natively_for, separate_params
from pipeline.engines.paddle.session import build_text_config
from pipeline.engines.shape_collection import collected_file
from pipeline.errors import ConfigError
from pipeline.models.serving_model import ServingModel


def paddle_precision(name: str) -> inference.PrecisionType:
    """Return Paddle's constant for a `precision` of config.yml."""
    kinds = inference.PrecisionType
    return {"fp32": kinds.Float32, "fp16": kinds.Half, "bf16": kinds.Bfloat16, "int8": kinds.Int8}[name]


def use_tensorrt(
    config: inference.Config, model: ServingModel, conf: PredictorConf, dynamic_shapes: DynamicShapes | None
) -> None:
    """Enable TensorRT in a Paddle configuration for a GPU.

    Raises ConfigError for settings that exclude each other.
    """
    if model.format == "pir":
        raise ConfigError(
            f"{model.program}: Paddle's TensorRT engine takes .pdmodel programs only: convert the model with "
            "--format pdmodel, or set device_type: 1"
        )
    precision = conf.tensorrt.precision or conf.precision
    if precision == "bf16":
        raise ConfigError("precision bf16 is not run by TensorRT here: use fp32, fp16 or int8")
    if conf.use_calib and precision != "int8":
        raise ConfigError(f"use_calib: true is for precision int8, but it is {precision}: remove one of them")
    if conf.tensorrt.auto_collect and dynamic_shapes is None and not conf.tensorrt.shapes:
        dynamic_shapes = DynamicShapes.from_file(collected_file(model, conf))
    shapes = profile_shapes(model, conf, dynamic_shapes)
    if shapes is not None and shapes.further:
        raise ConfigError(
            f"tensorrt.shapes names {len(shapes.profiles)} files, and Paddle's TensorRT engine has one range "
            "for a tensor: name one file, and serve each length class by an Op of its own"
        )
    config.enable_tensorrt_engine(
        workspace_size=WORKSPACE_BYTES,
        max_batch_size=(_max_rows(model, shapes) if shapes else None) or 1,
        min_subgraph_size=conf.min_subgraph_size,
        precision_mode=paddle_precision(precision),
        use_static=True,
        use_calib_mode=conf.use_calib,
    )
    config.set_optim_cache_dir(str(cache_folder(model, conf)))
    if shapes is not None and shapes.file is not None:
        config.enable_tuned_tensorrt_dynamic_shape(str(shapes.file), True)
    elif shapes is not None:
        config.set_trt_dynamic_shape_info(
            *({name: list(shape) for name, shape in s.items()} for s in (shapes.min, shapes.max, shapes.opt))
        )


def _max_rows(model: ServingModel, shapes: DynamicShapes) -> int | None:
    return shapes.max_rows(variable.name for variable in model.feeds)


log = logging.getLogger(__name__)

# Input shapes with cached oneDNN primitives. With 10, 2,000 random shapes (up to 16 x 512) through a
# 2 x 128 BERT end at 680 MB, reached within the first 250; 100 costs 220 MB more and is no faster on 24
# shapes in turn.
DEFAULT_ONEDNN_CACHE = 10
GPU_POOL_MB = 100  # Paddle's default initial size; it grows

_CPU_BF16_FLAGS = {"avx512_bf16", "amx_bf16"}


def build_config(
    model: ServingModel,
    conf: PredictorConf,
    *,
    precision: str | None = None,
    instance_index: int = 0,
    dynamic_shapes: DynamicShapes | None = None,
    natively: bool = False,
    rest: Half | None = None,
) -> inference.Config:
    """Return the Paddle configuration of one instance of a model.

    With `natively`, oneDNN is off, whatever `conf` says. `rest` is the part of a text model after its
    tokenizer. `precision` is the result of `precision_in_force`, which is called if `precision` is absent.
    Raises ConfigError for settings that this build or machine does not support.
    """
    device = resolve_device(conf)
    refuse_unsupported(device, conf)
    precision = precision or precision_in_force(device, model, conf)
    if rest is not None:
        config = build_text_config(rest)
    elif separate_params(model):
        config = inference.Config(str(model.directory))
    else:
        config = inference.Config(str(model.program), str(model.params or ""))
    configure(
        config,
        model,
        conf,
        precision=precision,
        instance_index=instance_index,
        dynamic_shapes=dynamic_shapes,
        natively=natively,
    )
    return config


def configure(
    config: inference.Config,
    model: ServingModel,
    conf: PredictorConf,
    *,
    precision: str | None = None,
    instance_index: int = 0,
    dynamic_shapes: DynamicShapes | None = None,
    natively: bool = False,
) -> None:
    """Apply the settings of `conf` to a Paddle configuration, without checking the capabilities of the build.

    `precision` overrides the precision in `conf`. With `natively`, oneDNN is off.
    """
    device = resolve_device(conf)
    precision = precision or conf.precision
    config.disable_glog_info()
    if model.format == "pir":
        # Without these, memory optimisation of PIR programs fails in 3.3.1.
        config.enable_new_ir(True)
        config.enable_new_executor(True)
    config.switch_ir_optim(conf.ir_optim or _needs_ir_optim(device, conf, precision))
    if conf.mem_optim:
        config.enable_memory_optim()
    config.set_cpu_math_library_num_threads(conf.thread_num)
    if device is Device.CPU:
        if natively or not _should_use_onednn(conf, precision) or _is_native_alone(model, conf):
            if config.mkldnn_enabled():
                _call_onednn_setter(config, "disable_{}")
        else:
            _use_onednn(config, conf, precision)
        return
    kind = paddle_precision(precision if device is Device.GPU else "fp32")
    config.enable_use_gpu(GPU_POOL_MB, select_card(conf, instance_index), kind)
    if device is Device.TENSORRT:
        use_tensorrt(config, model, conf, dynamic_shapes)


def refuse_unsupported(device: Device, conf: PredictorConf) -> None:
    """Raise ConfigError, with a hint, for a device that this build of Paddle or this machine lacks."""
    if device is Device.CPU:
        return
    version = paddle.__version__
    if not paddle.is_compiled_with_cuda():
        raise ConfigError(
            f"device_type {conf.device_type} with devices {conf.devices!r} needs a GPU build of Paddle, but "
            f"{version} is a CPU build: install a GPU build (docker/Dockerfile.gpu) or set device_type: 0"
        )
    count = paddle.device.cuda.device_count()
    for card in conf.devices.split(",") if conf.devices else ["0"]:
        if int(card) >= count:
            raise ConfigError(f"devices {conf.devices!r}: there is no card {card}, Paddle sees {count}")
    if device is Device.TENSORRT and not any(inference.get_trt_compile_version()):
        raise ConfigError(
            f"device_type 2 needs TensorRT, which Paddle {version} was built without: "
            "install a build with it (docker/Dockerfile.gpu) or set device_type: 1"
        )
    if device is Device.TENSORRT and not any(inference.get_trt_runtime_version()):
        raise ConfigError(
            "device_type 2 needs libnvinfer, which the loader does not find: see LD_LIBRARY_PATH"
        )


def precision_in_force(
    device: Device, model: ServingModel, conf: PredictorConf, cpu_flags: Collection[str] | None = None
) -> str:
    """Return the precision in which the model runs: `precision`, or fp32 if Paddle can't run that precision.

    The fallback logs a warning. Paddle Serving falls back as well: its examples configure int8 on a CPU.
    `use_calib` without TensorRT also logs a warning. With `strict_precision`, both cases raise ConfigError.
    `cpu_flags` default to /proc/cpuinfo.
    """
    unsupported = _explain_unsupported_precision(device, model, conf, cpu_flags)
    calibrates = conf.use_calib and device is not Device.TENSORRT
    reason = unsupported or (calibrates and "use_calib: true needs device_type: 2 (tensorRT)")
    precision = "fp32" if unsupported else conf.precision
    if reason and conf.strict_precision:
        raise ConfigError(f"{reason}; local_service_conf.strict_precision is set")
    if reason:
        log.warning("%s; %s runs in %s", reason, model.program, precision)
    return precision


def _explain_unsupported_precision(
    device: Device, model: ServingModel, conf: PredictorConf, cpu_flags: Collection[str] | None
) -> str | None:
    """Return why the model can't run in the configured precision, with a hint; None if it works."""
    if conf.precision == "fp32" or device is Device.TENSORRT:
        return None
    if device is Device.GPU:
        needs_tensorrt = "precision int8 on a GPU needs device_type: 2 (tensorRT)"
        return needs_tensorrt if conf.precision == "int8" else None
    if conf.precision != "bf16":
        return f"precision {conf.precision} is not run on the CPU: use fp32 or bf16, or a GPU"
    if conf.use_mkldnn is False:
        return "precision bf16 on the CPU needs oneDNN: remove use_mkldnn: false"
    if not _CPU_BF16_FLAGS & set(_cpu_flags() if cpu_flags is None else cpu_flags):
        return "precision bf16 needs a CPU with avx512_bf16 or amx_bf16, this has neither: use fp32"
    if operator := run_natively_for(model):
        return f"{_beyond_onednn(operator, model)}, which precision bf16 needs: use fp32"
    return None


def _cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split(":", 1)[1].split())
    return set()


def _needs_ir_optim(device: Device, conf: PredictorConf, precision: str) -> bool:
    """Whether graph optimisation must be on, whatever `ir_optim` says: bf16 and TensorRT are graph passes.

    Without graph optimisation, Paddle silently ignores both.
    """
    needs = device is Device.TENSORRT or precision == "bf16"
    if needs and not conf.ir_optim:
        log.info("ir_optim is switched on: %s needs it", "tensorRT" if device is Device.TENSORRT else "bf16")
    return needs


def _should_use_onednn(conf: PredictorConf, precision: str) -> bool:
    """Whether the model runs with oneDNN: as `use_mkldnn` says, and by default only for bf16.

    Paddle Serving's default is off. Measured with a 2 x 128 BERT, one thread and Paddle 3.3.1, on batches of
    1 / 8 / 32 rows of 32 tokens. oneDNN takes 1.7 / 5.0 / 13 ms of CPU, Paddle's kernels 2.3 / 8.7 / 41 ms.
    """
    return precision == "bf16" if conf.use_mkldnn is None else conf.use_mkldnn


def _use_onednn(config: inference.Config, conf: PredictorConf, precision: str) -> None:
    _call_onednn_setter(config, "enable_{}")
    _call_onednn_setter(config, "set_{}_cache_capacity", conf.mkldnn_cache_capacity or DEFAULT_ONEDNN_CACHE)
    if conf.mkldnn_op_list:
        _call_onednn_setter(config, "set_{}_op", set(conf.mkldnn_op_list))
    if precision == "bf16":
        _call_onednn_setter(config, "enable_{}_bfloat16")
        if conf.mkldnn_bf16_op_list:
            config.set_bfloat16_op(set(conf.mkldnn_bf16_op_list))


def _is_native_alone(model: ServingModel, conf: PredictorConf) -> bool:
    """Whether the model has an operator that oneDNN can't run. Logs the operator's name."""
    operator = run_natively_for(model)
    if operator is None:
        return False
    level = logging.WARNING if conf.use_mkldnn else logging.INFO
    log.log(level, "%s; it runs without", _beyond_onednn(operator, model))
    return True


def _beyond_onednn(operator: str, model: ServingModel) -> str:
    return f"Paddle {paddle.__version__} can't run {operator} of {model.program} with oneDNN"


def _call_onednn_setter(config: inference.Config, name: str, *arguments: Any) -> None:
    """Call a setter of Paddle's configuration, whose name has "onednn" since Paddle 3.1 and "mkldnn" before.

    name: the setter's name with {} in place of that part.
    """
    setter = getattr(config, name.format("onednn"), None) or getattr(config, name.format("mkldnn"))
    setter(*arguments)
