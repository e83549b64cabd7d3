"""Preprocessing of a Chinese text for a BERT model with inputs of fixed length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paddle_serving_app.reader.bert_tokenizer import BertTokenizer, read_vocabulary

_ADDRESS = "https://paddle-serving.bj.bcebos.com/reader/chinese_bert/vocab.txt"


class ChineseBertReader:
    """Converts a Chinese text to the four input tensors of a BERT model, by `process(text)`.

    args: "vocab_file", an existing file with one token per line, and "max_seq_len", 20 by default.
    """

    def __init__(self, args: Mapping[str, Any] | None = None) -> None:
        args = args or {}
        path = args.get("vocab_file", "vocab.txt")
        self.vocab = read_vocabulary(path, "ChineseBertReader", _ADDRESS)
        self.tokenizer = BertTokenizer(self.vocab)
        self.max_seq_len = int(args.get("max_seq_len", 20))
        self.pad_id = self.vocab["[PAD]"]
        self.cls_id = self.vocab["[CLS]"]
        self.sep_id = self.vocab["[SEP]"]
        self.mask_id = self.vocab["[MASK]"]
        self.feed_keys = ["input_ids", "position_ids", "segment_ids", "input_mask"]

    def set_feed_keys(self, keys: list[str]) -> None:
        """Set the names of the four input tensors: ids, positions, segments, mask."""
        self.feed_keys = keys

    def get_feed_keys(self) -> list[str]:
        """Return the names of the four input tensors: ids, positions, segments, mask."""
        return self.feed_keys

    def process(self, line: str | bytes) -> dict[str, list[int]]:
        """Return the four inputs of a text by name, lists of `max_seq_len` integers padded at the end.

        The ids begin with [CLS] and do not end with [SEP], as in Paddle Serving.
        """
        text = line if isinstance(line, str) else line.decode("utf-8", "ignore")
        pieces = self.tokenizer.tokenize(text)[: self.max_seq_len - 2]
        ids = [self.cls_id, *self.tokenizer.convert_tokens_to_ids(pieces)]
        rest = self.max_seq_len - len(ids)
        padding = [self.pad_id] * rest
        values = (
            ids + padding,
            list(range(len(ids))) + padding,
            [0] * len(ids) + padding,
            [1] * len(ids) + [0] * rest,
        )
        return dict(zip(self.feed_keys, values, strict=True))
