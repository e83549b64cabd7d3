"""The inputs of a v1 or v2 request as PipelineService's message, for an app that unpacks messages itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from client.protos.pipeline_service_pb2 import Request
from pipeline.dag import MESSAGE
from pipeline.tensors import to_message
from pipeline.unread import UnreadTensor
from pipeline.unread_rows import UnreadRows


def as_message(name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A text under its key, everything else as a tensor. Raises InvalidInput for what can't be read."""
    message = Request(name=name, method="infer")
    for key, value in inputs.items():
        given = value.read() if isinstance(value, UnreadTensor | UnreadRows) else value
        if isinstance(given, str):
            message.key.append(key)
            message.value.append(given)
            continue
        array = np.asarray(given)
        message.tensors.append(to_message(key, array.astype("S") if array.dtype.kind == "O" else array))
    return {MESSAGE: message.SerializeToString()}
