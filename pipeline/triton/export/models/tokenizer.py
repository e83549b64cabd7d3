"""Tokenizer: texts to token ids, by the tokenizer.json next to this file. Needs only NumPy and `tokenizers`.

The settings are `parameters` in config.pbtxt. Texts that are too long are rejected, truncated, or split into
overlapping windows. A text with several windows has several rows; the output `windows` has the number of rows
per text.
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
from pipeline.ops.text_tasks.text_task import TextRows, find_prompt, prompt_tokens, with_prompt
from pipeline.ops.text_tasks.text_windows import Cut, Reading
from pipeline.ops.texts import named_texts
from pipeline.ops.tokenizer import Row, TextTokenizer, Tokens
from pipeline.triton.export.models.requests import (
    build_response,
    find_version_file,
    get_array,
    get_parameter,
    get_settings,
)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config, settings = json.loads(args["model_config"]), get_settings(args)
        self.names = [tensor["name"] for tensor in config["input"]]
        self.types = {
            tensor["name"]: pb_utils.triton_string_to_numpy(tensor["data_type"])
            for tensor in config["output"]
        }
        self.padding = json.loads(settings["padding"])  # values by tensor; empty: rows need equal lengths
        self.max_rows = int(settings["most_rows"])
        stride, windows = int(settings["stride"]) or None, int(settings["max_windows"])
        self.reading = Reading(int(settings["max_tokens"]), settings["too_long"], stride, windows)
        self.prompts = json.loads(settings.get("prompts", "null"))  # None: the task has no prompts
        self.lowercase = settings.get("lowercase") == "True"
        self.default_prompt = settings.get("default_prompt", "")
        self.tokenizer = TextTokenizer(Tokenizer.from_file(str(find_version_file(args, "tokenizer.json"))))
        self.rows = TextRows(self.tokenizer, self.names, self.reading)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [build_response(request, self.tokenize) for request in requests]

    def tokenize(self, request: Any) -> dict[str, Any]:
        """Return the output arrays of a request: token ids and masks, and the number of rows of each text."""
        texts = self.texts(request)
        if "places" in self.types:
            tokens, rows, cuts = self.rows.build_rows_with_places(texts[0])
            outputs = self.tensors(rows, cuts) | {"places": self.places(tokens, rows, cuts)}
        else:
            prompt = self.prompt(request)
            rows, cuts = self.rows.build_rows([self.prepared(prompt, many) for many in texts])
            outputs = self.tensors(rows, cuts)
            if "prompt_tokens" in self.types:
                count = len(self.tokenizer.tokens(self.prepared(prompt, [""]))[0].ids)
                outputs["prompt_tokens"] = np.array(prompt_tokens(count, rows, cuts))
        return {name: outputs[name].astype(dtype) for name, dtype in self.types.items()}

    def texts(self, request: Any) -> list[list[str]]:
        """Return the request's texts, a list for each input. All inputs must have the same number of texts.

        Raises InvalidInput.
        """
        max_chars = None if self.reading.too_long == "truncate" else self.reading.most_chars
        texts = [named_texts({name: get_array(request, name)}, name, max_chars) for name in self.names]
        if len({len(many) for many in texts}) > 1:
            counts = ", ".join(f"{name} {len(many)}" for name, many in zip(self.names, texts, strict=True))
            raise InvalidInput(f"the texts of pairs differ in number: {counts}")
        return texts

    def prepared(self, prompt: str, texts: Sequence[str]) -> list[str]:
        """Return the texts with the prompt before each text, in lower case if the settings say so."""
        return with_prompt(prompt, texts, lowercase=self.lowercase)

    def prompt(self, request: Any) -> str:
        """Return the prompt to put before each text of the request, such as "query: "; empty without any."""
        if self.prompts is None:
            return ""
        return find_prompt(
            self.prompts, get_parameter(request, "prompt_name", name_sent, self.default_prompt)
        )

    def tensors(self, rows: Sequence[Row], cuts: Sequence[Cut]) -> dict[str, Any]:
        """Return the padded output arrays of tokenized rows, by output name.

        Raises InvalidInput for too many rows, and for rows of unequal length if the model can't be padded.
        """
        lengths = [len(row.ids) for row in rows]
        if len(rows) > self.max_rows:
            raise InvalidInput(
                f"the request comes to {len(rows)} rows for the model, {self.max_rows} are allowed: send "
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
        """Return rows of numbers as one int64 array, padded to the longest row. name: the output tensor."""
        array = np.full((len(rows), max(map(len, rows))), self.padding.get(name, 0), np.int64)
        for number, row in enumerate(rows):
            array[number, : len(row)] = row
        return array

    def places(self, tokens: Sequence[Tokens], rows: Sequence[Row], cuts: Sequence[Cut]) -> Any:
        """Return the place of each row's tokens in their text: token number, start and end character.

        The array is int64 [rows, length, 3]; ends are exclusive, and positions without a token of the text
        are -1.
        """
        array = np.full((len(rows), max(len(row.ids) for row in rows), 3), -1, np.int64)
        spans = [
            (text_tokens, *span)
            for text_tokens, part in zip(tokens, cuts, strict=True)
            for span in part.spans
        ]
        for number, (row, (text_tokens, first, last)) in enumerate(zip(rows, spans, strict=True)):
            for token in range(first, last):
                is_space = text_tokens.ids[token] == self.tokenizer.space
                offsets = (0, 0) if is_space else text_tokens.offsets[token]
                array[number, row.at + token - first] = (token, *offsets)
        return array
