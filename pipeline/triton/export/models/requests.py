"""What the Python models have in common: settings of config.pbtxt, tensors of requests, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from pipeline.errors import InvalidInput


def get_settings(args: dict[str, str]) -> dict[str, str]:
    """The parameters of config.pbtxt."""
    parameters = json.loads(args["model_config"])["parameters"]
    return {name: one["string_value"] for name, one in parameters.items()}


def path_beside(args: dict[str, str], name: str) -> Path:
    """The path of a file beside this one."""
    return Path(args["model_repository"], args["model_version"], name)


def json_beside(args: dict[str, str], name: str) -> Any:
    """The content of a JSON file beside this one."""
    return json.loads(path_beside(args, name).read_text("utf-8"))


def get_array(request: Any, name: str) -> Any:
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def get_parameter(request: Any, name: str, read: Callable[[str, Any], Any], usual: Any) -> Any:
    """What the request says under a name, else what is usual."""
    asked = json.loads(request.parameters() or "{}")
    return read(name, asked[name]) if name in asked else usual


def answered(request: Any, answer: Callable[[Any], dict[str, Any]]) -> Any:
    """The response to a request: the arrays that `answer` makes of it, or why it is refused."""
    try:
        tensors = [pb_utils.Tensor(name, array) for name, array in answer(request).items()]
    except InvalidInput as exc:
        error = pb_utils.TritonError(str(exc), pb_utils.TritonError.INVALID_ARG)
        return pb_utils.InferenceResponse(output_tensors=[], error=error)
    return pb_utils.InferenceResponse(output_tensors=tensors)
