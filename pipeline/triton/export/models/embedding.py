"""Postprocessing of embeddings: the model's vectors to one vector per text. Needs only NumPy.

The settings are `parameters` in config.pbtxt. Requests can override `dimensions` and `normalize` by request
parameters.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from pipeline.errors import InvalidInput
from pipeline.models.sentence_files import LAYERS_FILE
from pipeline.ops.text_tasks.embeddings import apply_layers, load_layers, pool_tokens, shortened
from pipeline.ops.text_tasks.parameters import flag, size
from pipeline.ops.text_tasks.text_windows import pooled
from pipeline.triton.export.models.requests import (
    build_response,
    find_version_file,
    get_array,
    get_parameter,
    get_settings,
)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.settings = get_settings(args)
        inputs = [tensor["name"] for tensor in json.loads(args["model_config"])["input"]]
        self.skips = "prompt_tokens" in inputs
        self.poolings = json.loads(self.settings["poolings"])
        self.layers = load_layers(
            json.loads(self.settings["layers"]), find_version_file(args, LAYERS_FILE), -1
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        return [build_response(request, self.compute_embedding) for request in requests]

    def compute_embedding(self, request: Any) -> dict[str, Any]:
        """Return the output arrays of a request: one vector per text, and the number of its tokens."""
        settings = self.settings
        dimensions = get_parameter(request, "dimensions", size, int(settings["dimensions"]) or None)
        normalize = get_parameter(request, "normalize", flag, settings["normalize"] == "True")
        lengths, windows = get_array(request, "lengths"), get_array(request, "windows").tolist()
        skips = get_array(request, "prompt_tokens") if self.skips else np.zeros_like(lengths)
        rows = zip(get_array(request, "scores"), lengths.tolist(), skips.tolist(), strict=True)
        of_rows = np.stack([pool_tokens(fetch, length, self.poolings, skip) for fetch, length, skip in rows])
        of_texts = pooled(apply_layers(of_rows, self.layers), windows, "mean")
        if dimensions is not None and dimensions > of_texts.shape[1]:
            raise InvalidInput(f"'dimensions' is {dimensions}; the model's vectors have {of_texts.shape[1]}")
        tokens = np.add.reduceat(lengths, np.cumsum([0, *windows[:-1]]))
        return {"embedding": shortened(of_texts, dimensions, normalize), "tokens": tokens}
