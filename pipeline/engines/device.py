"""Where a model runs: what `device_type` and `devices` of `local_service_conf` mean for every engine."""

from __future__ import annotations

from enum import Enum

from pipeline.engines.base import PredictorConf
from pipeline.errors import ConfigError

_REFUSED_DEVICES = {3: "arm cpu", 4: "xpu", 5: "Ascend310", 6: "Ascend910"}


class Device(Enum):
    """Where a model runs."""

    CPU = "cpu"
    GPU = "gpu"
    TENSORRT = "tensorRT"


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


def card_of(conf: PredictorConf, instance_index: int) -> int:
    """The card of one instance: they take those of `devices` in turn; card 0 where none is named."""
    cards = [int(card) for card in conf.devices.split(",")] if conf.devices else [0]
    return cards[instance_index % len(cards)]
