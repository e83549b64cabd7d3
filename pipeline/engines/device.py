"""The device that a model runs on, for all engines: `device_type`, `devices`, and settings of TensorRT."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from pipeline.engines.base import PredictorConf
from pipeline.engines.dynamic_shape import DynamicShapes
from pipeline.errors import ConfigError
from pipeline.models.serving_model import CACHE_FOLDER, ServingModel

log = logging.getLogger(__name__)

_REFUSED_DEVICES = {3: "arm cpu", 4: "xpu", 5: "Ascend310", 6: "Ascend910"}


class Device(Enum):
    """The kind of device that runs a model."""

    CPU = "cpu"
    GPU = "gpu"
    TENSORRT = "tensorRT"


def resolve_device(conf: PredictorConf) -> Device:
    """Return the kind of device for `device_type`; -1 is the GPU if `devices` is set, else the CPU.

    Raises ConfigError for devices that are not supported.
    """
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


def warn_of_paddle_keys(conf: PredictorConf, where: str) -> None:
    """Log a warning for keys of `local_service_conf` that only Paddle reads.

    where: text at the end of the warning, which tells for which models the keys have no effect.
    """
    paddle_keys: dict[str, object] = {
        "use_mkldnn": conf.use_mkldnn,
        "mkldnn_cache_capacity": conf.mkldnn_cache_capacity,
        "mkldnn_op_list": conf.mkldnn_op_list,
        "mkldnn_bf16_op_list": conf.mkldnn_bf16_op_list,
    }
    names = [name for name, value in paddle_keys.items() if value]
    if names:
        log.warning("%s: Paddle's own, without effect %s", ", ".join(names), where)


def select_card(conf: PredictorConf, instance_index: int) -> int:
    """Return an instance's GPU index: instances use the GPUs of `devices` round-robin; 0 if not set."""
    cards = [int(card) for card in conf.devices.split(",")] if conf.devices else [0]
    return cards[instance_index % len(cards)]


WORKSPACE_BYTES = 1 << 30


def configured_shapes(conf: PredictorConf) -> DynamicShapes | None:
    """Return the TensorRT shape ranges of `tensorrt.shapes` in config.yml, or from the files named there.

    None if the key is not set. Raises ConfigError.
    """
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
    """Return the TensorRT shape ranges of a model: those set on the Op, else in config.yml, else None.

    Raises ConfigError if the ranges don't fit the model's inputs.
    """
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
    """Create and return the folder of built TensorRT engines. Raises ConfigError if it can't be written."""
    folder = Path(conf.tensorrt.cache_dir) if conf.tensorrt.cache_dir else model.directory / CACHE_FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"tensorrt.cache_dir {folder} can't be made: {exc.strerror}") from exc
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"tensorrt.cache_dir {folder} can't be written: name another")
    return folder
