"""What the model gives for each text to its vector. It needs NumPy alone.

config.pbtxt has the settings, under `parameters`; a request may say other `dimensions`, and whether to
`normalize`, by parameters of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.errors import InvalidInput
from pipeline.ops.text_tasks.embeddings import shortened, vector_of
from pipeline.ops.text_tasks.parameters import flag, size
from pipeline.ops.text_tasks.text_windows import pooled
from pipeline.triton.export.models.requests import answered, array_of, parameter_of, settings_of


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.settings = settings_of(args)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [answered(request, self.answer) for request in requests]

    def answer(self, request: Any) -> dict[str, Any]:
        told = self.settings
        kept = parameter_of(request, "dimensions", size, int(told["dimensions"]) or None)
        normalize = parameter_of(request, "normalize", flag, told["normalize"] == "True")
        lengths, windows = array_of(request, "lengths"), array_of(request, "windows").tolist()
        rows = zip(array_of(request, "scores"), lengths.tolist(), strict=True)
        of_rows = np.stack([vector_of(fetch, length, told["pooling"]) for fetch, length in rows])
        of_texts = pooled(of_rows, windows, "mean")
        if kept is not None and kept > of_texts.shape[1]:
            raise InvalidInput(f"'dimensions' is {kept}; the model's vectors have {of_texts.shape[1]}")
        tokens = np.add.reduceat(lengths, np.cumsum([0, *windows[:-1]]))
        return {"embedding": shortened(of_texts, kept, normalize), "tokens": tokens}
