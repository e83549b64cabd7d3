"""Texts of a request, tokenized for the feeds of a language model or given to a feed of strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.errors import InvalidInput
from pipeline.models.description import TextInput
from pipeline.models.serving_model import ServingModel
from pipeline.ops.text_tasks.text_task import longest_text
from pipeline.ops.text_tasks.text_windows import Reading
from pipeline.ops.texts import named_texts
from pipeline.ops.tokenizing.tokenizer_files import load_tokenizer, tokenizer_file

Array = np.ndarray[Any, np.dtype[Any]]


class TextReader:
    """Reads one input of a request: a text, or several."""

    def __init__(self, name: str, given: TextInput, model: ServingModel) -> None:
        """Raises ConfigError where the tokenizer is missing or can't be read."""
        self._name = name
        self._given = given
        self._alone = len(model.description.inputs) == 1
        self._max_tokens = longest_text(given, model.feeds)
        self._feeds = {feed.alias: feed for feed in model.feeds}
        self._tokenizer = None if given.feed else _tokenizer(given, model, self._max_tokens)
        padding = model.padding.feeds if model.padding else {}
        self._pads = {alias: rule.value for alias, rule in padding.items()}

    def read(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """The feeds, a row for each text. Raises InvalidInput with the text's number."""
        most = Reading(self._max_tokens).most_chars
        cuts = self._given.too_long == "truncate"
        texts = named_texts(inputs, self._name, None if cuts else most, alone=self._alone)
        if cuts:
            texts = [text[:most] for text in texts]
        if self._tokenizer is None:
            feed = self._feeds[self._given.feed]
            strings = np.array(texts, object)
            return {feed.alias: strings[:, None] if len(feed.shape) == 2 else strings}
        return self._tokenized(self._tokenizer.encode_batch(texts))

    def _tokenized(self, encoded: Sequence[Any]) -> dict[str, Array]:
        given = self._given
        longest = max(len(one.ids) for one in encoded)
        if longest > self._max_tokens:
            raise InvalidInput(
                f"a text of {self._name!r} has {longest} tokens, the model reads {self._max_tokens}: shorten "
                "or split it"
            )
        of_feeds = {
            given.ids: [one.ids for one in encoded],
            given.types: [one.type_ids for one in encoded],
            given.mask: [one.attention_mask for one in encoded],
        }
        return {
            alias: self._padded(alias, rows, longest)
            for alias, rows in of_feeds.items()
            if alias in self._feeds
        }

    def _padded(self, alias: str, rows: Sequence[Sequence[int]], longest: int) -> Array:
        array = np.full((len(rows), longest), self._pads.get(alias, 0), self._feeds[alias].numpy_dtype)
        for number, row in enumerate(rows):
            array[number, : len(row)] = row
        return array


def _tokenizer(given: TextInput, model: ServingModel, max_tokens: int) -> Any:
    tokenizer = load_tokenizer(given, tokenizer_file(given, [model.directory]))
    if given.too_long == "truncate":
        tokenizer.enable_truncation(max_tokens)
    return tokenizer
