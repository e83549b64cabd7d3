"""model.py of Triton's Python backend that replaces an ONNX model: it asks a server that runs the model."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.names = [one["name"] for one in config["input"]]
        self.url = f"{config['parameters']['url']['string_value']}/v2/models/{args['model_name']}/infer"

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.response(request) for request in requests]

    def response(self, request: Any) -> Any:
        inputs = []
        for name in self.names:
            array = pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            tensor = {"name": name, "datatype": "INT64", "shape": array.shape, "data": array.ravel().tolist()}
            inputs.append(tensor)
        with urllib.request.urlopen(self.url, json.dumps({"inputs": inputs}).encode()) as answer:
            outputs = json.load(answer)["outputs"]
        arrays = {one["name"]: np.array(one["data"], np.float32).reshape(one["shape"]) for one in outputs}
        return pb_utils.InferenceResponse([pb_utils.Tensor(*one) for one in arrays.items()])
