"""The device of a model: `device_type` and `devices` of `local_service_conf`, for all engines."""

from __future__ import annotations

import logging
from enum import Enum

from pipeline.engines.base import PredictorConf
from pipeline.errors import ConfigError

log = logging.getLogger(__name__)

_REFUSED_DEVICES = {3: "arm cpu", 4: "xpu", 5: "Ascend310", 6: "Ascend910"}


class Device(Enum):
    """The kind of device that runs a model."""

    CPU = "cpu"
    GPU = "gpu"
    TENSORRT = "tensorRT"


def resolve_device(conf: PredictorConf) -> Device:
    """Return the device of `device_type`; -1 is the GPU if `devices` is set, else the CPU."""
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
    """Log a warning for keys of `local_service_conf` that only Paddle reads."""
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
    """The card of one instance: they take those of `devices` in turn; card 0 where none is named."""
    cards = [int(card) for card in conf.devices.split(",")] if conf.devices else [0]
    return cards[instance_index % len(cards)]
