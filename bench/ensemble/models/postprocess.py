"""model.py of the postprocess: scores to a label and its confidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        labels = Path(args["model_repository"], args["model_version"], "labels.txt")
        self.labels = [line.encode() for line in labels.read_text("utf-8").splitlines()]

    def execute(self, requests: list[Any]) -> list[Any]:
        return [
            self.response(pb_utils.get_input_tensor_by_name(request, "logits").as_numpy())
            for request in requests
        ]

    def response(self, logits: Any) -> Any:
        scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
        labels = np.array([[self.labels[number]] for number in scores.argmax(axis=-1)], np.object_)
        confidences = (scores.max(axis=-1, keepdims=True) / scores.sum(axis=-1, keepdims=True)).astype(
            np.float32
        )
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("label", labels), pb_utils.Tensor("confidence", confidences)]
        )
