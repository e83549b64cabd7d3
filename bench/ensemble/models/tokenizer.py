"""model.py of the tokenizer: texts to token ids. The texts of a request are padded to one length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import BertWordPieceTokenizer


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        vocabulary = Path(args["model_repository"], args["model_version"], "vocab.txt")
        self.tokenizer = BertWordPieceTokenizer(str(vocabulary), lowercase=True)

    def execute(self, requests: list[Any]) -> list[Any]:
        texts = [
            [text.decode() for text in pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[:, 0]]
            for request in requests
        ]
        encoded = iter(self.tokenizer.encode_batch([text for some in texts for text in some]))
        return [response([next(encoded).ids for _ in some]) for some in texts]


def response(ids: list[list[int]]) -> Any:
    input_ids = np.zeros((len(ids), max(map(len, ids))), np.int64)
    for row, own in zip(input_ids, ids, strict=True):
        row[: len(own)] = own
    outputs = {
        "input_ids": input_ids,
        "token_type_ids": np.zeros_like(input_ids),
        "attention_mask": (input_ids != 0).astype(np.int64),
    }
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])
