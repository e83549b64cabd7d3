"""Postprocessing of multi-label classification: scores to all labels over a threshold. Needs only NumPy.

labels.json next to this file names the classes. The settings are `parameters` in config.pbtxt. Requests can
override `top_k` and `threshold` by request parameters. Rows with fewer labels are padded with empty labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.ops.labels import over_threshold, sigmoids
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
        return [build_response(request, self.select_labels) for request in requests]

    def select_labels(self, request: Any) -> dict[str, Any]:
        """Return the output arrays of a request: for each text its labels over the threshold, with scores."""
        settings = self.settings
        top_k = get_parameter(request, "top_k", count, int(settings["top_k"]) or None)
        threshold = get_parameter(request, "threshold", share, float(settings["threshold"]))
        scores = sigmoids(get_array(request, "scores").astype(np.float32), settings["activation"])
        of_texts = pooled(scores, get_array(request, "windows").tolist(), settings["pooling"])
        outputs = over_threshold(of_texts, self.labels, threshold, top_k)
        return {**outputs, "labels": outputs["labels"].astype(object)}
