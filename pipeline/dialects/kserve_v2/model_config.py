"""The configuration of a model as Triton tells it, as far as it means anything here."""

from __future__ import annotations

from typing import Any

from pipeline.config.config_file import OpConfig, ServiceConfig
from pipeline.dialects.kserve.models import KServeModel
from pipeline.models.tensor_spec import TensorSpec

_CHANNELS = (1, 3)  # of grey and coloured images


def model_config(model: KServeModel, config: ServiceConfig, answering_op: str) -> dict[str, Any]:
    """ModelConfig as JSON; `answering_op` stands for the service where the model is the service."""
    op = config.op[model.op or answering_op]
    most = model.signature.max_batch_size
    document: dict[str, Any] = {
        "name": model.name,
        "platform": "",
        "backend": "python",
        "runtime": "",
        "version_policy": _version_policy(op),
        "max_batch_size": most,
        "input": [_input(spec, most) for spec in model.signature.inputs],
        "output": [_output(spec, most) for spec in model.signature.outputs],
        "batch_input": [],
        "batch_output": [],
        "optimization": {
            "priority": "PRIORITY_DEFAULT",
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
            "gather_kernel_buffer_threshold": 0,
            "eager_batching": False,
        },
    }
    if op.batch_size > 1:
        document["dynamic_batching"] = {
            "preferred_batch_size": [],
            "max_queue_delay_microseconds": int(op.auto_batching_timeout * 1000),
            "preserve_ordering": False,
            "priority_levels": 0,
            "default_priority_level": 0,
            "priority_queue_policy": {},
        }
    group = {
        "name": model.name,
        "kind": "KIND_CPU",
        "count": op.concurrency,
        "gpus": [],
        "secondary_devices": [],
        "profile": [],
        "passive": False,
        "host_policy": "",
    }
    return {
        **document,
        "instance_group": [group],
        "default_model_filename": "model.py",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
    }


def _version_policy(op: OpConfig) -> dict[str, Any]:
    conf = op.local_service_conf
    if conf is None or conf.model_version is None:
        return {"latest": {"num_versions": 1}}
    return {"specific": {"versions": [conf.model_version]}}


def _input(spec: TensorSpec, most: int) -> dict[str, Any]:
    return {
        "name": spec.name,
        "data_type": _type(spec),
        "format": _format(spec, most),
        "dims": _dims(spec, most),
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": False,
        "is_non_linear_format_io": False,
    }


def _output(spec: TensorSpec, most: int) -> dict[str, Any]:
    return {
        "name": spec.name,
        "data_type": _type(spec),
        "dims": _dims(spec, most),
        "label_filename": "labels.txt" if spec.labels else "",
        "is_shape_tensor": False,
        "is_non_linear_format_io": False,
    }


def _format(spec: TensorSpec, most: int) -> str:
    """How pixels lie in what looks like an image: clients of image models don't go on with FORMAT_NONE."""
    dims = _dims(spec, most)
    if len(dims) != 3 or spec.datatype == "BYTES":
        return "FORMAT_NONE"
    first, last = (length in _CHANNELS for length in (dims[0], dims[-1]))
    if first == last:
        return "FORMAT_NONE"
    return "FORMAT_NCHW" if first else "FORMAT_NHWC"


def _dims(spec: TensorSpec, most: int) -> list[int]:
    return list(spec.shape[1:] if most else spec.shape)


def _type(spec: TensorSpec) -> str:
    return "TYPE_STRING" if spec.datatype == "BYTES" else f"TYPE_{spec.datatype}"
