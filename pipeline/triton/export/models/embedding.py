"""What the model gives for each text to its vector. It needs NumPy alone.

config.pbtxt has the settings, under `parameters`; a request may say other `dimensions`, and whether to
`normalize`, by parameters of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.errors import InvalidInput
from pipeline.ops.text_tasks.embeddings import pool_vector, shortened
from pipeline.ops.text_tasks.parameters import flag, size
from pipeline.ops.text_tasks.text_windows import pooled
from pipeline.triton.export.models.requests import answered, get_array, get_parameter, get_settings


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.settings = get_settings(args)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [answered(request, self.answer) for request in requests]

    def answer(self, request: Any) -> dict[str, Any]:
        told = self.settings
        kept = get_parameter(request, "dimensions", size, int(told["dimensions"]) or None)
        normalize = get_parameter(request, "normalize", flag, told["normalize"] == "True")
        lengths, windows = get_array(request, "lengths"), get_array(request, "windows").tolist()
        rows = zip(get_array(request, "scores"), lengths.tolist(), strict=True)
        of_rows = np.stack([pool_vector(fetch, length, told["pooling"]) for fetch, length in rows])
        of_texts = pooled(of_rows, windows, "mean")
        if kept is not None and kept > of_texts.shape[1]:
            raise InvalidInput(f"'dimensions' is {kept}; the model's vectors have {of_texts.shape[1]}")
        tokens = np.add.reduceat(lengths, np.cumsum([0, *windows[:-1]]))
        return {"embedding": shortened(of_texts, kept, normalize), "tokens": tokens}
