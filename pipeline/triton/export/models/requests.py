"""Helpers shared by the exported Python models: settings, request tensors and parameters, responses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from pipeline.errors import InvalidInput


def get_settings(args: dict[str, str]) -> dict[str, str]:
    """Return the parameters of config.pbtxt."""
    parameters = json.loads(args["model_config"])["parameters"]
    return {name: parameter["string_value"] for name, parameter in parameters.items()}


def find_version_file(args: dict[str, str], name: str) -> Path:
    """Return the path of a file in the folder of the model's version."""
    return Path(args["model_repository"], args["model_version"], name)


def load_json_file(args: dict[str, str], name: str) -> Any:
    """Return the content of a JSON file in the folder of the model's version."""
    return json.loads(find_version_file(args, name).read_text("utf-8"))


def get_array(request: Any, name: str) -> Any:
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def get_parameter(request: Any, name: str, parse: Callable[[str, Any], Any], default: Any) -> Any:
    """Return a parsed request parameter, or `default` if the request does not have it."""
    parameters = json.loads(request.parameters() or "{}")
    return parse(name, parameters[name]) if name in parameters else default


def build_response(request: Any, compute: Callable[[Any], dict[str, Any]]) -> Any:
    """Return the response to a request: the arrays of `compute`, or an error for invalid input."""
    try:
        tensors = [pb_utils.Tensor(name, array) for name, array in compute(request).items()]
    except InvalidInput as exc:
        error = pb_utils.TritonError(str(exc), pb_utils.TritonError.INVALID_ARG)
        return pb_utils.InferenceResponse(output_tensors=[], error=error)
    return pb_utils.InferenceResponse(output_tensors=tensors)
