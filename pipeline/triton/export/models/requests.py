"""Functions shared by the exported Python models: settings, request tensors and parameters, responses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from pipeline.errors import InvalidInput


def get_settings(args: dict[str, str]) -> dict[str, str]:
    """Return the `parameters` of config.pbtxt as texts by name. args: the argument of `initialize`."""
    parameters = json.loads(args["model_config"])["parameters"]
    return {name: parameter["string_value"] for name, parameter in parameters.items()}


def find_version_file(args: dict[str, str], name: str) -> Path:
    """Return the path of a file next to model.py. args: the argument of `initialize`."""
    return Path(args["model_repository"], args["model_version"], name)


def load_json_file(args: dict[str, str], name: str) -> Any:
    """Return the parsed content of a JSON file next to model.py. args: the argument of `initialize`."""
    return json.loads(find_version_file(args, name).read_text("utf-8"))


def get_array(request: Any, name: str) -> Any:
    """Return an input tensor of a request as a NumPy array."""
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def get_parameter(request: Any, name: str, parse: Callable[[str, Any], Any], default: Any) -> Any:
    """Return a request parameter, parsed and checked; `default` if the request does not have it.

    parse: called with the parameter's name and value; it raises InvalidInput.
    """
    parameters = json.loads(request.parameters() or "{}")
    return parse(name, parameters[name]) if name in parameters else default


def build_response(request: Any, compute: Callable[[Any], dict[str, Any]]) -> Any:
    """Build the response to a request: the arrays that `compute` returns, by output name.

    If `compute` raises InvalidInput, the response is an error with the code INVALID_ARG.
    """
    try:
        tensors = [pb_utils.Tensor(name, array) for name, array in compute(request).items()]
    except InvalidInput as exc:
        error = pb_utils.TritonError(str(exc), pb_utils.TritonError.INVALID_ARG)
        return pb_utils.InferenceResponse(output_tensors=[], error=error)
    return pb_utils.InferenceResponse(output_tensors=tensors)
