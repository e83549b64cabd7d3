"""model.py of Triton's Python backend; a process for each instance."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from bench.peers.apps.classifier import Classifier


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.classifier = Classifier()

    def execute(self, requests: list[Any]) -> list[Any]:
        texts = [
            text.decode()
            for request in requests
            for text in pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[:, 0]
        ]
        # One text each, as they are sent here.
        return [response(answer) for answer in self.classifier.classify(texts)]


def response(answer: dict[str, Any]) -> Any:
    label = pb_utils.Tensor("label", np.array([[answer["label"].encode()]], np.object_))
    confidence = pb_utils.Tensor("confidence", np.array([[answer["confidence"]]], np.float32))
    return pb_utils.InferenceResponse([label, confidence])
