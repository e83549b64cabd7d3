"""Texts to token ids, by the tokenizer.json beside this file. It needs NumPy and `tokenizers` alone.

config.pbtxt has the settings, under `parameters`. Texts that are too long are refused, cut, or read in
windows that overlap: then a text has several rows, and `windows` tells how many.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from pipeline.errors import InvalidInput
from pipeline.ops.text_rows import TextRows
from pipeline.ops.text_tokenizer import Row, TextTokenizer
from pipeline.ops.text_windows import Cut, Reading
from pipeline.ops.texts import named_texts


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        told = {name: one["string_value"] for name, one in config["parameters"].items()}
        self.names = [one["name"] for one in config["input"]]
        self.types = {one["name"]: one["data_type"] for one in config["output"]}
        self.padding = json.loads(told["padding"])  # the value of each tensor, or none
        stride = int(told["stride"]) or None
        self.reading = Reading(int(told["max_tokens"]), told["too_long"], stride, int(told["max_windows"]))
        self.most_rows = int(told["most_rows"])
        folder = Path(args["model_repository"], args["model_version"])
        tokenizer = TextTokenizer(Tokenizer.from_file(str(folder / "tokenizer.json")))
        self.rows = TextRows(tokenizer, self.names, self.reading)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.response(request) for request in requests]

    def response(self, request: Any) -> Any:
        try:
            tensors = self.tensors(*self.rows.of(self.texts(request)))
        except InvalidInput as exc:
            error = pb_utils.TritonError(str(exc), pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(output_tensors=[], error=error)
        made = [
            pb_utils.Tensor(name, tensors[name].astype(pb_utils.triton_string_to_numpy(kind)))
            for name, kind in self.types.items()
        ]
        return pb_utils.InferenceResponse(output_tensors=made)

    def texts(self, request: Any) -> list[list[str]]:
        """The texts of each input, as many of each."""
        given = {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.names}
        most = None if self.reading.too_long == "truncate" else self.reading.most_chars
        texts = [named_texts(given, name, most) for name in self.names]
        if len({len(many) for many in texts}) > 1:
            told = ", ".join(f"{name} {len(many)}" for name, many in zip(self.names, texts, strict=True))
            raise InvalidInput(f"the texts of pairs differ in number: {told}")
        return texts

    def tensors(self, rows: list[Row], cuts: list[Cut]) -> dict[str, Any]:
        if len(rows) > self.most_rows:
            raise InvalidInput(
                f"the request comes to {len(rows)} rows for the model, {self.most_rows} are allowed: send "
                "fewer texts in each request"
            )
        lengths = np.array([len(row.ids) for row in rows])
        if not self.padding and len(set(lengths.tolist())) > 1:
            raise InvalidInput(
                f"the texts have {', '.join(map(str, lengths))} tokens; this model reads texts of one length "
                "alone at once: send each by itself"
            )
        return {
            "input_ids": self.padded("input_ids", [row.ids for row in rows]),
            "token_type_ids": self.padded("token_type_ids", [row.types for row in rows]),
            "attention_mask": self.padded("attention_mask", [[1] * len(row.ids) for row in rows]),
            "lengths": lengths,
            "windows": np.array([len(part.spans) for part in cuts]),
            "truncated": np.array([part.truncated for part in cuts]),
        }

    def padded(self, name: str, rows: list[list[int]]) -> Any:
        """Rows as long as the longest."""
        made = np.full((len(rows), max(map(len, rows))), self.padding.get(name, 0), np.int64)
        for number, row in enumerate(rows):
            made[number, : len(row)] = row
        return made
