"""The TensorRT part of a `paddle.inference.Config`: precision, engine cache and dynamic shapes."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.predictors.base import PredictorConf
from pipeline.predictors.dynamic_shape import DynamicShapes
from pipeline.predictors.paddle_import import inference
from pipeline.serving_model import ServingModel

WORKSPACE_BYTES = 1 << 30
CACHE_FOLDER = "tensorrt_cache"  # in the model's folder, where config.yml names none


def paddle_precision(name: str) -> inference.PrecisionType:
    """Paddle's constant for a `precision` of config.yml."""
    kinds = inference.PrecisionType
    return {"fp32": kinds.Float32, "fp16": kinds.Half, "bf16": kinds.Bfloat16, "int8": kinds.Int8}[name]


def use_tensorrt(
    config: inference.Config, model: ServingModel, conf: PredictorConf, dynamic_shapes: DynamicShapes | None
) -> None:
    """Set the engine up on a Config that uses a GPU. Raises ConfigError for what can't work together."""
    if model.format == "pir":
        raise ConfigError(
            f"{model.program}: Paddle's TensorRT engine takes .pdmodel programs only: export one "
            "with Paddle 2.6, or 3.1 and FLAGS_enable_pir_api=0, or set device_type: 1"
        )
    precision = conf.tensorrt.precision or conf.precision
    if precision == "bf16":
        raise ConfigError("precision bf16 is not run by TensorRT here: use fp32, fp16 or int8")
    if conf.use_calib and precision != "int8":
        raise ConfigError(f"use_calib: true is for precision int8, but it is {precision}: remove one of them")
    shapes = _shapes(model, conf, dynamic_shapes)
    config.enable_tensorrt_engine(
        workspace_size=WORKSPACE_BYTES,
        max_batch_size=(_max_rows(model, shapes) if isinstance(shapes, DynamicShapes) else None) or 1,
        min_subgraph_size=conf.min_subgraph_size,
        precision_mode=paddle_precision(precision),
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
