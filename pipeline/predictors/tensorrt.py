"""What every engine tells TensorRT: the shapes of its profile, and the folder that keeps what it builds."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.predictors.base import PredictorConf
from pipeline.predictors.dynamic_shape import DynamicShapes
from pipeline.serving_model import ServingModel

WORKSPACE_BYTES = 1 << 30
CACHE_FOLDER = "tensorrt_cache"  # in the model's folder, where config.yml names none


def profile_shapes(
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


def cache_folder(model: ServingModel, conf: PredictorConf) -> Path:
    """Where built engines are kept; made here so that a folder that can't be written is told at once."""
    folder = Path(conf.tensorrt.cache_dir) if conf.tensorrt.cache_dir else model.directory / CACHE_FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"tensorrt.cache_dir {folder} can't be made: {exc.strerror}") from exc
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"tensorrt.cache_dir {folder} can't be written: name another")
    return folder
