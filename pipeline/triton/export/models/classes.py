"""Scores of classes to the best label of each text, and the best few. It needs NumPy alone.

labels.json beside this file names the classes. config.pbtxt has the settings, under `parameters`; a request
may say another `top_k` and `threshold` by parameters of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from pipeline.errors import InvalidInput
from pipeline.ops.labels import best, probabilities
from pipeline.ops.parameters import count, share
from pipeline.ops.text_windows import pooled


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        told = {name: one["string_value"] for name, one in config["parameters"].items()}
        self.top_k, self.threshold = int(told["top_k"]), float(told["threshold"])
        self.activation, self.pooling = told["activation"], told["pooling"]
        folder = Path(args["model_repository"], args["model_version"])
        self.labels = np.array(json.loads((folder / "labels.json").read_text("utf-8")))

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.response(request) for request in requests]

    def response(self, request: Any) -> Any:
        asked = json.loads(request.parameters() or "{}")
        try:
            top_k = count("top_k", asked.get("top_k", self.top_k))
            threshold = share("threshold", asked.get("threshold", self.threshold))
        except InvalidInput as exc:
            error = pb_utils.TritonError(str(exc), pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(output_tensors=[], error=error)
        scores = pb_utils.get_input_tensor_by_name(request, "scores").as_numpy().astype(np.float32)
        windows = pb_utils.get_input_tensor_by_name(request, "windows").as_numpy()
        of_texts = pooled(probabilities(scores, self.activation), windows.tolist(), self.pooling)
        answer = best(of_texts, self.labels, top_k, threshold)
        answer["label"], answer["labels"] = answer["label"].astype(object), answer["labels"].astype(object)
        tensors = [pb_utils.Tensor(name, array) for name, array in answer.items()]
        return pb_utils.InferenceResponse(output_tensors=tensors)
