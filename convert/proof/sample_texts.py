"""The reader of text files: feeds of a text model, made by the tokenizer beside the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from convert.programs.program_feeds import Feeds
from convert.proof.target import Target
from pipeline.errors import ConfigError, ConversionError
from pipeline.models.description import TextInput
from pipeline.models.serving_model import Variable
from pipeline.ops.tokenizing.tokenizer_files import TOKENIZERS, load_tokenizer, tokenizer_file
from pipeline.text_lines import read_lines

MAX_TOKENS = 512
_PARTS = {"input_ids": "ids", "token_type_ids": "type_ids", "attention_mask": "attention_mask"}


def text_rows(path: Path, target: Target) -> list[Feeds]:
    """Tokenize each line of a UTF-8 file to a batch of one, by the program's names of the feeds.

    Raises ConversionError for a file without text, a model without a tokenizer, or a model with feeds that
    can't be made of texts.
    """
    foreign = [feed.alias for feed in target.feeds if not _part(feed) or len(feed.shape) != 2]
    if foreign:
        raise ConversionError(
            f"{path} holds texts, from which {foreign[0]!r} of {target.source} can't be made; give a .npz "
            "file with an array for each input."
        )
    texts = _texts(path)
    tokenizer = _tokenizer(path, target)
    longest = [feed.longest[1] for feed in target.feeds if feed.longest]
    tokenizer.enable_truncation(min([MAX_TOKENS, *longest]))
    return [_row(encoding, target) for encoding in tokenizer.encode_batch(texts)]


def _part(feed: Variable) -> str:
    """Return the attribute of an encoding that this feed takes; empty for none."""
    return _PARTS.get(feed.alias) or _PARTS.get(feed.name, "")


def _texts(path: Path) -> list[str]:
    try:
        lines = read_lines(path)
    except (OSError, UnicodeDecodeError) as exc:
        raise ConversionError(f"{path} can't be read as UTF-8 text ({exc}).") from exc
    texts = [line.strip() for line in lines if line.strip()]
    if not texts:
        raise ConversionError(f"{path} holds no text; give it one text a line.")
    return texts


def _tokenizer(path: Path, target: Target) -> Any:
    """Load the tokenizer beside the model."""
    directory = target.folder
    if directory is None:
        raise ConversionError(
            f"{path} holds texts, but {target.source} has no tokenizer; give a .npz file with an array for "
            "each input."
        )
    if not any((directory / name).is_file() for name in TOKENIZERS):
        raise ConversionError(
            f"{directory} has neither {' nor '.join(TOKENIZERS)} to make inputs of texts; give a .npz file."
        )
    text_input = TextInput()
    try:
        return load_tokenizer(text_input, tokenizer_file(text_input, [directory]))
    except ConfigError as exc:
        raise ConversionError(f"{path} holds texts, which can't be tokenized: {exc.message}.") from exc


def _row(encoding: Any, target: Target) -> Feeds:
    return {feed.name: np.array([getattr(encoding, _part(feed))], feed.numpy_dtype) for feed in target.feeds}
