"""Texts to token ids, by the tokenizer.json beside this file. It needs NumPy and `tokenizers` alone.

config.pbtxt has the settings, under `parameters`. Texts that are too long are refused, cut, or read in
windows that overlap: then a text has several rows, and `windows` tells how many.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from pipeline.errors import InvalidInput
from pipeline.ops.text_tasks.parameters import name_sent
from pipeline.ops.text_tasks.text_rows import TextRows, find_prompt, prompt_tokens
from pipeline.ops.text_tasks.text_windows import Cut, Reading
from pipeline.ops.texts import named_texts
from pipeline.ops.tokenizing.text_tokenizer import Row, TextTokenizer, Tokens
from pipeline.triton.export.models.requests import (
    answered,
    get_array,
    get_parameter,
    get_settings,
    path_beside,
)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config, told = json.loads(args["model_config"]), get_settings(args)
        self.names = [one["name"] for one in config["input"]]
        self.types = {
            one["name"]: pb_utils.triton_string_to_numpy(one["data_type"]) for one in config["output"]
        }
        self.padding = json.loads(told["padding"])  # the value of each tensor; nothing: rows of one length
        self.most_rows = int(told["most_rows"])
        stride, windows = int(told["stride"]) or None, int(told["max_windows"])
        self.reading = Reading(int(told["max_tokens"]), told["too_long"], stride, windows)
        self.prompts = json.loads(told.get("prompts", "null"))  # None: the task has no prompts
        self.default_prompt = told.get("default_prompt", "")
        self.tokenizer = TextTokenizer(Tokenizer.from_file(str(path_beside(args, "tokenizer.json"))))
        self.rows = TextRows(self.tokenizer, self.names, self.reading)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [answered(request, self.answer) for request in requests]

    def answer(self, request: Any) -> dict[str, Any]:
        texts = self.texts(request)
        if "places" in self.types:
            tokens, rows, cuts = self.rows.build_rows_with_places(texts[0])
            made = self.tensors(rows, cuts) | {"places": self.places(tokens, rows, cuts)}
        else:
            prompt = self.prompt(request)
            rows, cuts = self.rows.build_rows([[prompt + text for text in many] for many in texts])
            made = self.tensors(rows, cuts)
            if "prompt_tokens" in self.types:
                count = len(self.tokenizer.tokens([prompt])[0].ids)
                made["prompt_tokens"] = np.array(prompt_tokens(count, rows, cuts))
        return {name: made[name].astype(dtype) for name, dtype in self.types.items()}

    def texts(self, request: Any) -> list[list[str]]:
        """The texts of each input, as many of each."""
        most = None if self.reading.too_long == "truncate" else self.reading.most_chars
        texts = [named_texts({name: get_array(request, name)}, name, most) for name in self.names]
        if len({len(many) for many in texts}) > 1:
            told = ", ".join(f"{name} {len(many)}" for name, many in zip(self.names, texts, strict=True))
            raise InvalidInput(f"the texts of pairs differ in number: {told}")
        return texts

    def prompt(self, request: Any) -> str:
        """The text that goes before each text of the request."""
        if self.prompts is None:
            return ""
        return find_prompt(
            self.prompts, get_parameter(request, "prompt_name", name_sent, self.default_prompt)
        )

    def tensors(self, rows: Sequence[Row], cuts: Sequence[Cut]) -> dict[str, Any]:
        lengths = [len(row.ids) for row in rows]
        if len(rows) > self.most_rows:
            raise InvalidInput(
                f"the request comes to {len(rows)} rows for the model, {self.most_rows} are allowed: send "
                "fewer texts in each request"
            )
        if not self.padding and len(set(lengths)) > 1:
            raise InvalidInput(
                f"the texts have {', '.join(map(str, lengths))} tokens; this model reads texts of one length "
                "alone at once: send each by itself"
            )
        return {
            "input_ids": self.padded("input_ids", [row.ids for row in rows]),
            "token_type_ids": self.padded("token_type_ids", [row.types for row in rows]),
            "attention_mask": self.padded("attention_mask", [[1] * length for length in lengths]),
            "lengths": np.array(lengths),
            "windows": np.array([len(part.spans) for part in cuts]),
            "truncated": np.array([part.truncated for part in cuts]),
        }

    def padded(self, name: str, rows: Sequence[list[int]]) -> Any:
        """Rows as long as the longest."""
        made = np.full((len(rows), max(map(len, rows))), self.padding.get(name, 0), np.int64)
        for number, row in enumerate(rows):
            made[number, : len(row)] = row
        return made

    def places(self, tokens: Sequence[Tokens], rows: Sequence[Row], cuts: Sequence[Cut]) -> Any:
        """Of each place in a row the number of the token in its text, and its first and last character; -1
        where there is none."""
        made = np.full((len(rows), max(len(row.ids) for row in rows), 3), -1, np.int64)
        spans = [(one, *span) for one, part in zip(tokens, cuts, strict=True) for span in part.spans]
        for number, (row, (one, first, last)) in enumerate(zip(rows, spans, strict=True)):
            for token in range(first, last):
                is_space = one.ids[token] == self.tokenizer.space
                offsets = (0, 0) if is_space else one.offsets[token]
                made[number, row.at + token - first] = (token, *offsets)
        return made
