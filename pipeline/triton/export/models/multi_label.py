"""Scores of classes to all labels of each text over a threshold. It needs NumPy alone.

labels.json beside this file names the classes. config.pbtxt has the settings, under `parameters`; a request
may say another `top_k` and `threshold` by parameters of its own. Rows with fewer labels end with empty ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.ops.labels import over_threshold, sigmoids
from pipeline.ops.text_tasks.parameters import count, share
from pipeline.ops.text_tasks.text_windows import pooled
from pipeline.triton.export.models.requests import (
    answered,
    get_array,
    get_parameter,
    get_settings,
    json_beside,
)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.settings = get_settings(args)
        self.labels = np.array(json_beside(args, "labels.json"))

    def execute(self, requests: list[Any]) -> list[Any]:
        return [answered(request, self.answer) for request in requests]

    def answer(self, request: Any) -> dict[str, Any]:
        told = self.settings
        top_k = get_parameter(request, "top_k", count, int(told["top_k"]) or None)
        threshold = get_parameter(request, "threshold", share, float(told["threshold"]))
        scores = sigmoids(get_array(request, "scores").astype(np.float32), told["activation"])
        of_texts = pooled(scores, get_array(request, "windows").tolist(), told["pooling"])
        made = over_threshold(of_texts, self.labels, threshold, top_k)
        return {**made, "labels": made["labels"].astype(object)}
