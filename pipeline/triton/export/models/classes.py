"""Postprocessing of text classification: class scores to the best labels of each text. Needs only NumPy.

labels.json next to this file names the classes. The settings are `parameters` in config.pbtxt. Requests can
override `top_k` and `threshold` by request parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.ops.labels import best, probabilities
from pipeline.ops.text_tasks.parameters import count, share
from pipeline.ops.text_tasks.text_windows import pooled
from pipeline.triton.export.models.requests import (
    build_response,
    get_array,
    get_parameter,
    get_settings,
    load_json_file,
)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.settings = get_settings(args)
        self.labels = np.array(load_json_file(args, "labels.json"))

    def execute(self, requests: list[Any]) -> list[Any]:
        return [build_response(request, self.rank_labels) for request in requests]

    def rank_labels(self, request: Any) -> dict[str, Any]:
        """Return the output arrays of a request: for each text its best label, and its labels and scores."""
        settings = self.settings
        top_k = get_parameter(request, "top_k", count, int(settings["top_k"]))
        threshold = get_parameter(request, "threshold", share, float(settings["threshold"]))
        scores = probabilities(get_array(request, "scores").astype(np.float32), settings["activation"])
        of_texts = pooled(scores, get_array(request, "windows").tolist(), settings["pooling"])
        outputs = best(of_texts, self.labels, top_k, threshold)
        return {
            **outputs,
            "label": outputs["label"].astype(object),
            "labels": outputs["labels"].astype(object),
        }
