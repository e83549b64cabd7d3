"""Default packing of RequestOp and ResponseOp: inputs of a Request, Response of an output.

Separate from `pipeline.api.op`, which must not import the messages: in the script's process, `client` may be
a folder of the app.
"""

from __future__ import annotations

from typing import Any

from client.protos.pipeline_service_pb2 import Request, Response, Tensor
from pipeline.api.request_options import Answer
from pipeline.config.config_file import Limits
from pipeline.paddle_serving.channel_data import ChannelData
from pipeline.wire.paddle_tensors import add_tensors
from pipeline.wire.value_texts import build_message, format_outputs


def unpack_inputs(request: Request) -> dict[str, Any]:
    """Return value i under key i, and each tensor under its name. Raises BadPackage and TooLarge."""
    inputs: dict[str, Any] = dict(zip(request.key, request.value, strict=False))
    add_tensors(inputs, request.tensors, Limits())
    return inputs


def unpack_outputs(response: Response) -> dict[str, Any]:
    """Return a successful response's values by key and tensors by name. Raises BadPackage and TooLarge."""
    outputs: dict[str, Any] = dict(zip(response.key, response.value, strict=False))
    add_tensors(outputs, response.tensors, Limits())
    return outputs


def unpack_tensor(tensor: Tensor) -> tuple[Any, Any]:
    """Return a tensor's array or str, and its lod, int32 [2, n], or None. Raises BadPackage and TooLarge."""
    inputs: dict[str, Any] = {}
    add_tensors(inputs, [tensor], Limits())
    return inputs[tensor.name], inputs.get(f"{tensor.name}.lod")


def build_response(channel_data: ChannelData) -> Response:
    """Build the service's response, with values as texts."""
    if channel_data.refusal is not None:
        err_no, message = channel_data.refusal
        return Response(err_no=err_no, err_msg=message)
    output = channel_data.parse()
    if isinstance(output, Answer) and output.key_values is not None:
        output = output.key_values
    return build_message(*format_outputs(output))
