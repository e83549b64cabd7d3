"""The TensorRT part of a `paddle.inference.Config`: precision, engine cache and dynamic shapes."""

from __future__ import annotations

from pipeline.engines.base import PredictorConf
from pipeline.engines.dynamic_shape import DynamicShapes
from pipeline.engines.paddle.paddle_import import inference
from pipeline.engines.shape_collection import collected_file
from pipeline.engines.tensorrt import WORKSPACE_BYTES, cache_folder, profile_shapes
from pipeline.errors import ConfigError
from pipeline.models.serving_model import ServingModel


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
    if shapes is not None and shapes.others:
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
