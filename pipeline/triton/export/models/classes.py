"""Scores of classes to the best label of each text, and the best few. It needs NumPy alone.

labels.json beside this file names the classes. config.pbtxt has the settings, under `parameters`; a request
may say another `top_k` and `threshold` by parameters of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.ops.labels import best, probabilities
from pipeline.ops.text_tasks.parameters import count, share
from pipeline.ops.text_tasks.text_windows import pooled
from pipeline.triton.export.models.requests import (
    answered,
    array_of,
    json_beside,
    parameter_of,
    settings_of,
)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.settings = settings_of(args)
        self.labels = np.array(json_beside(args, "labels.json"))

    def execute(self, requests: list[Any]) -> list[Any]:
        return [answered(request, self.answer) for request in requests]

    def answer(self, request: Any) -> dict[str, Any]:
        told = self.settings
        top_k = parameter_of(request, "top_k", count, int(told["top_k"]))
        threshold = parameter_of(request, "threshold", share, float(told["threshold"]))
        scores = probabilities(array_of(request, "scores").astype(np.float32), told["activation"])
        of_texts = pooled(scores, array_of(request, "windows").tolist(), told["pooling"])
        made = best(of_texts, self.labels, top_k, threshold)
        return {**made, "label": made["label"].astype(object), "labels": made["labels"].astype(object)}
