"""From `local_service_conf` to a `paddle.inference.Config`, and what a build of Paddle can't do."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from enum import Enum
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.predictors.base import PredictorConf
from pipeline.predictors.dynamic_shape import DynamicShapes
from pipeline.predictors.paddle_import import inference, paddle
from pipeline.serving_model import ServingModel

log = logging.getLogger(__name__)

# Input shapes whose oneDNN primitives are kept. With 10, 2,000 random shapes (up to 16 x 512) through a
# 2 x 128 BERT end at 680 MB, reached within the first 250; 100 costs 220 MB more and is no faster on 24
# shapes in turn.
DEFAULT_ONEDNN_CACHE = 10
GPU_POOL_MB = 100  # Paddle's usual start; it grows
TENSORRT_WORKSPACE_BYTES = 1 << 30
CACHE_FOLDER = "tensorrt_cache"

_REFUSED_DEVICES = {3: "arm cpu", 4: "xpu", 5: "Ascend310", 6: "Ascend910"}
_CPU_BF16_FLAGS = {"avx512_bf16", "amx_bf16"}


class Device(Enum):
    """Where a model runs."""

    CPU = "cpu"
    GPU = "gpu"
    TENSORRT = "tensorRT"


def build_config(
    model: ServingModel,
    conf: PredictorConf,
    *,
    instance_index: int = 0,
    dynamic_shapes: DynamicShapes | None = None,
) -> inference.Config:
    """The configuration of one instance. Raises ConfigError for what this build or machine can't do."""
    device = resolve_device(conf)
    refuse_unsupported(device, conf)
    config = inference.Config(str(model.program), str(model.params or ""))
    configure(config, model, conf, instance_index=instance_index, dynamic_shapes=dynamic_shapes)
    return config


def configure(
    config: inference.Config,
    model: ServingModel,
    conf: PredictorConf,
    *,
    instance_index: int = 0,
    dynamic_shapes: DynamicShapes | None = None,
) -> None:
    """Set everything `conf` says, without asking what the build can do."""
    device = resolve_device(conf)
    config.disable_glog_info()
    if model.format == "pir":
        # Without these, 3.3.1 runs PIR programs by a way on which memory optimisation fails.
        config.enable_new_ir(True)
        config.enable_new_executor(True)
    config.switch_ir_optim(conf.ir_optim or _needs_ir_optim(device, conf))
    if conf.mem_optim:
        config.enable_memory_optim()
    config.set_cpu_math_library_num_threads(conf.thread_num)
    if device is Device.CPU:
        _use_cpu(config, conf)
        return
    cards = [int(card) for card in conf.devices.split(",")] if conf.devices else [0]
    precision = _precision(conf.precision if device is Device.GPU else "fp32")
    config.enable_use_gpu(GPU_POOL_MB, cards[instance_index % len(cards)], precision)
    if device is Device.TENSORRT:
        _use_tensorrt(config, model, conf, dynamic_shapes)


def resolve_device(conf: PredictorConf) -> Device:
    """`device_type`, where -1 means the GPU if `devices` names any."""
    match conf.device_type:
        case -1:
            return Device.GPU if conf.devices else Device.CPU
        case 0:
            return Device.CPU
        case 1:
            return Device.GPU
        case 2:
            return Device.TENSORRT
        case other:
            name = _REFUSED_DEVICES.get(other, "unknown")
            raise ConfigError(
                f"device_type {other} ({name}) is not served: use -1, 0 cpu, 1 gpu or 2 tensorRT"
            )


def refuse_unsupported(device: Device, conf: PredictorConf, cpu_flags: Collection[str] | None = None) -> None:
    """Raise ConfigError, with the remedy, for what this build of Paddle or this machine can't do.

    `cpu_flags` are those of /proc/cpuinfo unless given.
    """
    if device is Device.CPU:
        _refuse_cpu_precision(conf, _cpu_flags() if cpu_flags is None else cpu_flags)
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
    if device is Device.GPU and conf.precision == "int8":
        raise ConfigError("precision int8 on a GPU needs device_type: 2 (tensorRT)")
    if device is Device.TENSORRT and not any(inference.get_trt_compile_version()):
        raise ConfigError(
            f"device_type 2 needs TensorRT, which Paddle {version} was built without: "
            "install a build with it (docker/Dockerfile.gpu) or set device_type: 1"
        )
    if device is Device.TENSORRT and not any(inference.get_trt_runtime_version()):
        raise ConfigError(
            "device_type 2 needs libnvinfer, which the loader does not find: see LD_LIBRARY_PATH"
        )


def _refuse_cpu_precision(conf: PredictorConf, cpu_flags: Collection[str]) -> None:
    if conf.precision == "fp32":
        return
    if conf.precision != "bf16":
        raise ConfigError(f"precision {conf.precision} is not run on the CPU: use fp32 or bf16, or a GPU")
    if conf.use_mkldnn is False:
        raise ConfigError("precision bf16 on the CPU needs oneDNN: remove use_mkldnn: false")
    if not _CPU_BF16_FLAGS & set(cpu_flags):
        raise ConfigError(
            "precision bf16 needs a CPU with avx512_bf16 or amx_bf16, this has neither: use fp32"
        )


def _cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split(":", 1)[1].split())
    return set()


def _needs_ir_optim(device: Device, conf: PredictorConf) -> bool:
    """bf16 and TensorRT are graph passes: without them the setting would be ignored in silence."""
    needs = device is Device.TENSORRT or conf.precision == "bf16"
    if needs and not conf.ir_optim:
        log.info("ir_optim is switched on: %s needs it", "tensorRT" if device is Device.TENSORRT else "bf16")
    return needs


def _use_cpu(config: inference.Config, conf: PredictorConf) -> None:
    # oneDNN when nothing is said: 1.7 / 5.0 / 13 ms of CPU against 2.3 / 8.7 / 41 for batches of 1 / 8 / 32
    # with 32 tokens each (2 x 128 BERT, one thread, Paddle 3.3.1).
    if conf.use_mkldnn is False:
        if config.mkldnn_enabled():
            _onednn(config, "disable_{}")
        return
    _onednn(config, "enable_{}")
    _onednn(config, "set_{}_cache_capacity", conf.mkldnn_cache_capacity or DEFAULT_ONEDNN_CACHE)
    if conf.mkldnn_op_list:
        _onednn(config, "set_{}_op", set(conf.mkldnn_op_list))
    if conf.precision == "bf16":
        _onednn(config, "enable_{}_bfloat16")
        if conf.mkldnn_bf16_op_list:
            config.set_bfloat16_op(set(conf.mkldnn_bf16_op_list))


def _onednn(config: inference.Config, name: str, *arguments: Any) -> None:
    """Call a setter by the name it has since 3.1, or by that of 2.6."""
    setter = getattr(config, name.format("onednn"), None) or getattr(config, name.format("mkldnn"))
    setter(*arguments)


def _precision(name: str) -> inference.PrecisionType:
    kinds = inference.PrecisionType
    return {"fp32": kinds.Float32, "fp16": kinds.Half, "bf16": kinds.Bfloat16, "int8": kinds.Int8}[name]


def _use_tensorrt(
    config: inference.Config, model: ServingModel, conf: PredictorConf, dynamic_shapes: DynamicShapes | None
) -> None:
    if model.format == "pir":
        raise ConfigError(
            f"{model.program}: Paddle's TensorRT engine takes .pdmodel programs only; export one "
            "(docs/conversion.md) or set device_type: 1"
        )
    precision = conf.tensorrt.precision or conf.precision
    if precision == "bf16":
        raise ConfigError("precision bf16 is not run by TensorRT here: use fp32, fp16 or int8")
    if conf.use_calib and precision != "int8":
        raise ConfigError(f"use_calib: true is for precision int8, but it is {precision}: remove one of them")
    shapes = _shapes(model, conf, dynamic_shapes)
    config.enable_tensorrt_engine(
        workspace_size=TENSORRT_WORKSPACE_BYTES,
        max_batch_size=(_max_rows(model, shapes) if isinstance(shapes, DynamicShapes) else None) or 1,
        min_subgraph_size=conf.min_subgraph_size,
        precision_mode=_precision(precision),
        use_static=True,
        use_calib_mode=conf.use_calib,
    )
    config.set_optim_cache_dir(str(_cache_folder(model, conf)))
    if isinstance(shapes, Path):
        config.enable_tuned_tensorrt_dynamic_shape(str(shapes), True)
    elif shapes is not None:
        config.set_trt_dynamic_shape_info(
            *({name: list(shape) for name, shape in s.items()} for s in (shapes.min, shapes.max, shapes.opt))
        )


def _shapes(
    model: ServingModel, conf: PredictorConf, dynamic_shapes: DynamicShapes | None
) -> DynamicShapes | Path | None:
    """The Op's own shapes, else those of config.yml: ranges, or a file of collected ones."""
    configured = conf.tensorrt.shapes
    if conf.tensorrt.auto_collect and dynamic_shapes is None and not configured:
        raise ConfigError(
            "tensorrt.auto_collect is not supported yet: give set_dynamic_shape_info or tensorrt.shapes"
        )
    if dynamic_shapes is None and isinstance(configured, str) and configured:
        path = Path(configured)
        if not path.is_file():
            raise ConfigError(f"tensorrt.shapes: there is no file {path}; collect the shapes first")
        return path
    if dynamic_shapes is None and configured and not isinstance(configured, str):
        dynamic_shapes = DynamicShapes.from_ranges(configured)
    program_names = {variable.name for variable in model.feeds}
    aliases = {v.alias: v.name for v in model.feeds if v.alias not in program_names}
    shapes = dynamic_shapes.renamed(aliases) if dynamic_shapes else DynamicShapes({}, {}, {})
    for variable in model.feeds:
        shape = shapes.max.get(variable.name)
        if shape is None and -1 in variable.shape[1:]:
            raise ConfigError(
                f"TensorRT needs the shapes of feed {variable.alias!r}: give them in set_dynamic_shape_info "
                "or tensorrt.shapes"
            )
        if shape is not None and len(shape) != len(variable.shape):
            raise ConfigError(
                f"the TensorRT shapes of feed {variable.alias!r} have {len(shape)} axes, "
                f"the model's {list(variable.shape)} has {len(variable.shape)}"
            )
    return shapes if dynamic_shapes else None


def _max_rows(model: ServingModel, shapes: DynamicShapes) -> int | None:
    return shapes.max_rows(variable.name for variable in model.feeds)


def _cache_folder(model: ServingModel, conf: PredictorConf) -> Path:
    """Where built engines are kept; made here so that a folder that can't be written is told at once."""
    folder = Path(conf.tensorrt.cache_dir) if conf.tensorrt.cache_dir else model.directory / CACHE_FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"tensorrt.cache_dir {folder} can't be made: {exc.strerror}") from exc
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"tensorrt.cache_dir {folder} can't be written: name another")
    return folder
