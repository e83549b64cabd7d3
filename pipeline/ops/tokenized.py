"""Texts of a request, tokenized for the feeds of a language model or given to a feed of strings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, InvalidInput
from pipeline.models.description import TextInput
from pipeline.models.serving_model import ServingModel, Variable
from pipeline.ops.texts import named_texts

Array = np.ndarray[Any, np.dtype[Any]]

TOKENIZERS = ("tokenizer.json", "vocab.txt")
MISSING = "texts are tokenized by tokenizers, which is not installed here: pip install 'paddlewheel[texts]'"
_USUAL_LENGTH = 512
_CHARS_PER_TOKEN = 20  # a longer text has surely more tokens than the model reads


class TextReader:
    """Reads one input of a request: a text, or several."""

    def __init__(self, name: str, given: TextInput, model: ServingModel) -> None:
        """Raises ConfigError where the tokenizer is missing or can't be read."""
        self._name = name
        self._given = given
        self._max_tokens = given.max_tokens or _longest(given, model.feeds)
        self._feeds = {feed.alias: feed for feed in model.feeds}
        self._tokenizer = None if given.feed else _tokenizer(given, model.directory, self._max_tokens)
        padding = model.padding.feeds if model.padding else {}
        self._pads = {alias: rule.value for alias, rule in padding.items()}

    def read(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """The feeds, a row for each text. Raises InvalidInput with the text's number."""
        most = _CHARS_PER_TOKEN * self._max_tokens
        if self._given.too_long == "truncate":
            texts = [text[:most] for text in named_texts(inputs, self._name, None)]
        else:
            texts = named_texts(inputs, self._name, most)
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


def tokenizer_file(given: TextInput, folder: Path) -> Path:
    """The tokenizer beside the model. Raises ConfigError where there is none."""
    names = (given.tokenizer,) if given.tokenizer else TOKENIZERS
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise ConfigError(
            f"{folder} has no {' or '.join(names)}, so its texts can't be tokenized: copy the tokenizer's "
            "file there, or convert the model with --file"
        )
    return found


def _longest(given: TextInput, feeds: Sequence[Variable]) -> int:
    known = (feed.longest[1] for feed in feeds if feed.alias == given.ids and feed.longest)
    return next(known, _USUAL_LENGTH)


def _tokenizer(given: TextInput, folder: Path, max_tokens: int) -> Any:
    try:
        from tokenizers import BertWordPieceTokenizer, Tokenizer
    except ImportError as exc:
        raise ConfigError(MISSING) from exc
    path = tokenizer_file(given, folder)
    try:
        if path.suffix == ".json":
            tokenizer = Tokenizer.from_file(str(path))
        else:
            tokenizer = BertWordPieceTokenizer(str(path), lowercase=_lowercase(given, folder))
    except Exception as exc:  # tokenizers has no classes of its own
        raise ConfigError(f"{path} is no tokenizer that can be read ({exc})") from exc
    tokenizer.no_padding()
    if given.too_long == "truncate":
        tokenizer.enable_truncation(max_tokens)
    else:
        tokenizer.no_truncation()
    return tokenizer


def _lowercase(given: TextInput, folder: Path) -> bool:
    if given.lowercase is not None:
        return given.lowercase
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return True
    return bool(settings.get("do_lower_case", True)) if isinstance(settings, dict) else True
