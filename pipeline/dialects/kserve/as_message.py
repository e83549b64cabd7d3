"""The inputs of a v1 or v2 request as PipelineService's message, for an app that unpacks messages itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from client.protos.pipeline_service_pb2 import Request
from pipeline.api.dag import MESSAGE
from pipeline.dialects.kserve.json_fields import sendable
from pipeline.errors import InvalidInput
from pipeline.messages.values import Unread
from pipeline.wire.paddle_tensors import to_message


def as_message(name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A text under its key, everything else as a tensor. Raises InvalidInput for what can't be read."""
    message = Request(name=name, method="infer")
    for written, value in inputs.items():
        key = sendable(written)
        read_value = value.decode() if isinstance(value, Unread) else value
        if isinstance(read_value, str):
            message.key.append(key)
            message.value.append(sendable(read_value))
            continue
        array = np.asarray(read_value)
        try:
            tensor = to_message(key, array.astype("S") if array.dtype.kind == "O" else array)
        except ValueError as exc:  # no elements in lengths beyond an int32
            raise InvalidInput(f"input {key!r} can't be told as a tensor of the message: {exc}") from None
        message.tensors.append(tensor)
    return {MESSAGE: message.SerializeToString()}
