"""A model's configuration as Triton tells it to clients: ModelConfig, completed, as plain values."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from client.protos.kserve_v2_pb2 import ModelConfig, ModelInstanceGroup

_NEWER = ("max_inflight_requests",)  # than the version of Triton whose answers are given here
_FILE_NAMES = {"python": "model.py", "onnxruntime": "model.onnx", "openvino": "model.xml"}


def message_to_dict(message: Message) -> dict[str, Any]:
    """The message by its fields' names: numbers as numbers, enums by name, and what is not set as its
    default, unless it is a message or the choice of one."""
    told: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            of = field.message_type.fields_by_name["value"]  # type: ignore[union-attr]  # it is one
            told[field.name] = {str(key): _value(of, value[key]) for key in sorted(value)}
        elif field.is_repeated:
            told[field.name] = [_value(field, one) for one in value]
        elif field.name in _NEWER and not value:
            continue
        elif not field.has_presence or message.HasField(field.name):
            told[field.name] = _value(field, value)
    return told


def complete(config: ModelConfig, backend: str) -> None:
    """Put in what Triton puts in where a file leaves it out."""
    if config.WhichOneof("scheduling_choice") == "dynamic_batching":
        batching = config.dynamic_batching
        if not batching.preferred_batch_size and config.max_batch_size:
            batching.preferred_batch_size.append(config.max_batch_size)
    if not config.version_policy.WhichOneof("policy_choice"):
        config.version_policy.latest.num_versions = 1
    if backend == "ensemble":
        config.platform = "ensemble"
        config.model_transaction_policy.decoupled = False
        return
    config.backend = backend
    for pinned in (config.optimization.input_pinned_memory, config.optimization.output_pinned_memory):
        pinned.enable = True
    if not config.instance_group:
        config.instance_group.add(name=config.name, kind=ModelInstanceGroup.KIND_CPU, count=1)
    for number, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{number}"
        group.count = group.count or 1
        if group.kind == ModelInstanceGroup.KIND_AUTO:
            group.kind = ModelInstanceGroup.KIND_CPU
    config.default_model_filename = config.default_model_filename or _FILE_NAMES.get(backend, "")


def _is_map(field: Any) -> bool:
    return bool(
        field.message_type is not None and field.message_type.GetOptions().map_entry and field.is_repeated
    )


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return message_to_dict(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value
