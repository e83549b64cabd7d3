"""model.py that runs the ONNX model, for a Triton without the ONNX backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

NAMES = ("input_ids", "token_type_ids", "attention_mask")


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        program = Path(args["model_repository"], args["model_version"], "model.onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(program), options)

    def execute(self, requests: list[Any]) -> list[Any]:
        rows = [
            [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for request in requests]
            for name in NAMES
        ]
        feeds = dict(zip(NAMES, map(joined, rows), strict=True))
        (logits,) = self.session.run(None, feeds)
        ends = np.cumsum([len(ids) for ids in rows[0]])[:-1]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("logits", own)]) for own in np.split(logits, ends)
        ]


def joined(arrays: list[Any]) -> Any:
    """Join the rows of all requests, padded with zeros to the longest."""
    length = max(array.shape[1] for array in arrays)
    return np.concatenate([np.pad(array, ((0, 0), (0, length - array.shape[1]))) for array in arrays])
