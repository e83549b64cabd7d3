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

    def __init__(self, name: str, settings: TextInput, model: ServingModel) -> None:
        """Raises ConfigError where the tokenizer is missing or can't be read."""
        self._name = name
        self._given = settings
        self._alone = len(model.description.inputs) == 1
        self._max_tokens = longest_text(settings, model.feeds)
        self._feeds = {feed.alias: feed for feed in model.feeds}
        self._tokenizer = None if settings.feed else _tokenizer(settings, model, self._max_tokens)
        padding = model.padding.feeds if model.padding else {}
        self._pads = {alias: rule.value for alias, rule in padding.items()}

    def read_texts(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """The feeds, a row for each text. Raises InvalidInput with the text's number."""
        max_chars = Reading(self._max_tokens).most_chars
        cuts = self._given.too_long == "truncate"
        texts = named_texts(inputs, self._name, None if cuts else max_chars, alone=self._alone)
        if cuts:
            texts = [text[:max_chars] for text in texts]
        if self._tokenizer is None:
            feed = self._feeds[self._given.feed]
            strings = np.array(texts, object)
            return {feed.alias: strings[:, None] if len(feed.shape) == 2 else strings}
        return self._tokenized(self._tokenizer.encode_batch(texts))

    def _tokenized(self, encoded: Sequence[Any]) -> dict[str, Array]:
        settings = self._given
        longest = max(len(encoding.ids) for encoding in encoded)
        if longest > self._max_tokens:
            raise InvalidInput(
                f"a text of {self._name!r} has {longest} tokens, the model reads {self._max_tokens}: shorten "
                "or split it"
            )
        of_feeds = {
            settings.ids: [encoding.ids for encoding in encoded],
            settings.types: [encoding.type_ids for encoding in encoded],
            settings.mask: [encoding.attention_mask for encoding in encoded],
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


def _tokenizer(settings: TextInput, model: ServingModel, max_tokens: int) -> Any:
    tokenizer = load_tokenizer(settings, tokenizer_file(settings, [model.directory]))
    if settings.too_long == "truncate":
        tokenizer.enable_truncation(max_tokens)
    return tokenizer
