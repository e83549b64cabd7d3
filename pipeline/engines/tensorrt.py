"""TensorRT settings of all engines: shapes of the profiles, and the cache folder of built engines."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

from pipeline.engines.base import PredictorConf
from pipeline.engines.dynamic_shape import DynamicShapes
from pipeline.errors import ConfigError
from pipeline.models.serving_model import CACHE_FOLDER, ServingModel

WORKSPACE_BYTES = 1 << 30


def configured_shapes(conf: PredictorConf) -> DynamicShapes | None:
    """Return the shapes of `tensorrt.shapes`: ranges, or a file of collected ranges per length class."""
    configured = conf.tensorrt.shapes
    if not configured:
        return None
    if isinstance(configured, str):
        return DynamicShapes.from_file(Path(configured))
    if isinstance(configured, Mapping):
        return DynamicShapes.from_ranges(configured)
    return DynamicShapes.from_files([Path(file) for file in configured])


def profile_shapes(
    model: ServingModel, conf: PredictorConf, dynamic_shapes: DynamicShapes | None
) -> DynamicShapes | None:
    """Return the Op's shapes, else those of config.yml. Raises ConfigError if they don't fit the feeds."""
    dynamic_shapes = dynamic_shapes or configured_shapes(conf)
    program_names = {variable.name for variable in model.feeds}
    aliases = {v.alias: v.name for v in model.feeds if v.alias not in program_names}
    shapes = dynamic_shapes.renamed(aliases) if dynamic_shapes else DynamicShapes({}, {}, {})
    for profile, variable in itertools.product(shapes.profiles, model.feeds):
        shape = profile.max.get(variable.name)
        if shape is None and -1 in variable.shape[1:]:
            raise ConfigError(
                f"TensorRT needs the shapes of feed {variable.alias!r}: give them in set_dynamic_shape_info "
                "or tensorrt.shapes, a file of `paddlewheel convert shapes` say"
            )
        if shape is not None and len(shape) != len(variable.shape):
            raise ConfigError(
                f"the TensorRT shapes of feed {variable.alias!r} have {len(shape)} axes, "
                f"the model's {list(variable.shape)} has {len(variable.shape)}"
            )
    return shapes if dynamic_shapes else None


def cache_folder(model: ServingModel, conf: PredictorConf) -> Path:
    """Create and return the folder of built engines. Raises ConfigError if it can't be written."""
    folder = Path(conf.tensorrt.cache_dir) if conf.tensorrt.cache_dir else model.directory / CACHE_FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"tensorrt.cache_dir {folder} can't be made: {exc.strerror}") from exc
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"tensorrt.cache_dir {folder} can't be written: name another")
    return folder
