"""Feeds of a text model made of a file of texts, by the tokenizer that stands beside the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convert.programs.feeds import Feeds
from convert.proof.padding import pad_rows
from pipeline.errors import ConversionError
from pipeline.serving_model import FeedPadding, ServingModel, Variable
from pipeline.text_lines import read_lines

BATCH_ROWS = 8
MAX_TOKENS = 512
_PARTS = {"input_ids": "ids", "token_type_ids": "type_ids", "attention_mask": "attention_mask"}


def text_rows(path: Path, model: ServingModel) -> list[Feeds]:
    """A batch of one for each line of a UTF-8 file, by the program's names of the feeds.

    Raises ConversionError for a file without text, a model without tokenizer or with feeds that texts don't
    give.
    """
    foreign = [feed.alias for feed in model.feeds if feed.alias not in _PARTS or len(feed.shape) != 2]
    if foreign:
        raise ConversionError(
            f"{path} holds texts, from which {foreign[0]!r} of {model.directory} can't be made; give a .npz "
            "file with an array for each input."
        )
    texts = _texts(path)
    tokenizer = _tokenizer(model.directory)
    tokenizer.enable_truncation(MAX_TOKENS)
    return [_row(encoding, model.feeds) for encoding in tokenizer.encode_batch(texts)]


def batched(rows: Sequence[Feeds], model: ServingModel) -> list[Feeds]:
    """Rows in batches as the service makes them: padded as declared, alone where that isn't."""
    pads = named_padding(model)
    if not pads:
        return list(rows)
    return [pad_rows(rows[at : at + BATCH_ROWS], pads) for at in range(0, len(rows), BATCH_ROWS)]


def named_padding(model: ServingModel) -> dict[str, FeedPadding]:
    """The declared padding by the program's names of the feeds."""
    declared = model.padding.feeds if model.padding else {}
    return {feed.name: declared[feed.alias] for feed in model.feeds if feed.alias in declared}


def _texts(path: Path) -> list[str]:
    try:
        lines = read_lines(path)
    except (OSError, UnicodeDecodeError) as exc:
        raise ConversionError(f"{path} can't be read as UTF-8 text ({exc}).") from exc
    texts = [line.strip() for line in lines if line.strip()]
    if not texts:
        raise ConversionError(f"{path} holds no text; give it one text a line.")
    return texts


def _tokenizer(directory: Path) -> Any:
    """That of tokenizer.json, else BERT's over vocab.txt."""
    from tokenizers import BertWordPieceTokenizer, Tokenizer

    whole, vocabulary = directory / "tokenizer.json", directory / "vocab.txt"
    try:
        if whole.is_file():
            tokenizer = Tokenizer.from_file(str(whole))
            tokenizer.no_padding()
            return tokenizer
        if vocabulary.is_file():
            return BertWordPieceTokenizer(str(vocabulary), lowercase=_lowercase(directory))
    except Exception as exc:  # tokenizers raises Exception itself
        raise ConversionError(f"the tokenizer in {directory} can't be loaded ({exc}).") from exc
    raise ConversionError(
        f"{directory} has neither tokenizer.json nor vocab.txt to make inputs of texts; give a .npz file."
    )


def _lowercase(directory: Path) -> bool:
    settings = directory / "tokenizer_config.json"
    return not settings.is_file() or bool(json.loads(settings.read_bytes()).get("do_lower_case", True))


def _row(encoding: Any, feeds: Sequence[Variable]) -> Feeds:
    return {feed.name: np.array([getattr(encoding, _PARTS[feed.alias])], feed.numpy_dtype) for feed in feeds}
