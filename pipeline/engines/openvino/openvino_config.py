"""From `local_service_conf` to OpenVINO's properties, and what it can't do."""

from __future__ import annotations

import logging
from typing import Any

from pipeline.engines.base import PredictorConf
from pipeline.engines.device import Device, resolve_device, tell_paddle_only
from pipeline.engines.openvino.openvino_import import openvino
from pipeline.errors import ConfigError
from pipeline.models.serving_model import ServingModel

log = logging.getLogger(__name__)

CPU = "CPU"
# Kernels kept, of which a shape of feeds needs a few. 5,000 if left alone: a 2 x 128 BERT then grows by 8 MB
# with each 100 shapes. 250 are as fast with 100 shapes in turn; with 100 a run takes half as long again.
KERNELS_KEPT = 250
_HINTS = {"fp32": "f32", "bf16": "bf16"}


def properties(core: openvino.Core, model: ServingModel, conf: PredictorConf) -> dict[str, Any]:
    """How the model is compiled. Raises ConfigError for what OpenVINO can't do here."""
    if resolve_device(conf) is not Device.CPU:
        raise ConfigError(
            f"device_type {conf.device_type} with devices {conf.devices!r}: OpenVINO runs models on the CPU "
            "here: set device_type: 0 and no devices, or remove engine: openvino"
        )
    tell_paddle_only(conf, "with engine: openvino")
    precision = _precision_in_force(core, model, conf)
    return {
        # Told always: left alone, OpenVINO takes bf16 where the CPU has it, and answers differ.
        "INFERENCE_PRECISION_HINT": _HINTS[precision],
        "INFERENCE_NUM_THREADS": conf.thread_num,
        # One run at a time, by all threads: see OpenVinoPredictor.
        "NUM_STREAMS": 1,
        # Pinned threads of several processes would meet on the same cores.
        "ENABLE_CPU_PINNING": False,
        "CPU_RUNTIME_CACHE_CAPACITY": KERNELS_KEPT,
    }


def _precision_in_force(core: openvino.Core, model: ServingModel, conf: PredictorConf) -> str:
    """`precision`, or fp32 where the CPU can't compute in it: a warning, ConfigError if `strict_precision`.

    So is `use_calib`, for which there is nothing here to calibrate.
    """
    hindrance = _hindrance(core, conf)
    why = hindrance or (
        conf.use_calib
        and "use_calib is not for OpenVINO: serve an int8 model (paddlewheel convert precision) as it is"
    )
    if why and conf.strict_precision:
        raise ConfigError(f"{why}; local_service_conf.strict_precision is set")
    precision = "fp32" if hindrance else conf.precision
    if why:
        log.warning("%s; %s runs in %s", why, model.program, precision)
    return precision


def _hindrance(core: openvino.Core, conf: PredictorConf) -> str | None:
    """Why the model can't be run in `precision`, with the remedy; None where it can."""
    if conf.precision == "int8":
        return (
            "precision int8 is in the model's file where OpenVINO runs it: serve one that was converted to "
            "it (paddlewheel convert precision)"
        )
    if conf.precision not in _HINTS:
        return f"precision {conf.precision} is not run by OpenVINO on the CPU: use fp32 or bf16"
    if conf.precision == "bf16" and "BF16" not in core.get_property(CPU, "OPTIMIZATION_CAPABILITIES"):
        return "precision bf16 needs a CPU with avx512_bf16 or amx_bf16, this has neither: use fp32"
    return None
