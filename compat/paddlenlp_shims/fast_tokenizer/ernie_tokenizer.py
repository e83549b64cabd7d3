"""The tokenizers of ERNIE and BERT in PaddleNLP's C++ packages, on top of the `tokenizers` package.

Source: fast_tokenizer/python/fast_tokenizer/tokenizers_impl of PaddleNLP 2.5 (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Encoding:
    """A tokenized text: `ids`, `type_ids`, `tokens`, `offsets`, `attention_mask`, `special_tokens_mask`.

    Each is a list with an entry for each token. Methods such as `get_ids()` return the same lists.
    """

    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.startswith("get_"):
            value = getattr(self._encoding, name.removeprefix("get_"))
            return lambda: value
        return getattr(self._encoding, name)

    def __len__(self) -> int:
        return len(self._encoding)

    def __repr__(self) -> str:
        return repr(self._encoding)

    @property
    def overflowing(self) -> list[Encoding]:
        """The parts of the text that truncation cut off, each as an `Encoding`."""
        return [Encoding(more) for more in self._encoding.overflowing]


class ErnieFastTokenizer:
    """A WordPiece tokenizer for ERNIE models, which encodes texts as `[CLS] A [SEP] B [SEP]`.

    vocab: maps each token to its id. lowercase, strip_accents, handle_chinese_chars, clean_text: options for
    the normalization of texts. max_sequence_len: maximum number of tokens, to which texts are truncated.
    Raises TypeError if `vocab` lacks `unk_token`, `sep_token` or `cls_token`.
    """

    def __init__(
        self,
        vocab: Mapping[str, int],
        unk_token: str = "[UNK]",
        sep_token: str = "[SEP]",
        cls_token: str = "[CLS]",
        pad_token: str = "[PAD]",
        mask_token: str = "[MASK]",
        clean_text: bool = True,
        handle_chinese_chars: bool = True,
        strip_accents: bool | None = True,
        lowercase: bool = True,
        wordpieces_prefix: str = "##",
        max_sequence_len: int | None = None,
        **ignored: Any,
    ) -> None:
        from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

        for role, token in (("unk_token", unk_token), ("sep_token", sep_token), ("cls_token", cls_token)):
            if token not in vocab:
                raise TypeError(f"{role} {token} not found in the vocabulary")
        model = models.WordPiece(
            dict(vocab), unk_token=unk_token, continuing_subword_prefix=wordpieces_prefix
        )
        self._tokenizer = Tokenizer(model)
        special = (unk_token, sep_token, cls_token, pad_token, mask_token)
        self._tokenizer.add_special_tokens([token for token in special if token in vocab])
        self._tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=clean_text,
            handle_chinese_chars=handle_chinese_chars,
            strip_accents=strip_accents,
            lowercase=lowercase,
        )
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._tokenizer.post_processor = processors.BertProcessing(
            (sep_token, vocab[sep_token]), (cls_token, vocab[cls_token])
        )
        self._tokenizer.decoder = decoders.WordPiece(prefix=wordpieces_prefix)
        if max_sequence_len is not None:
            self.enable_truncation(max_sequence_len)

    def encode(
        self, sequence: Any, pair: Any = None, is_pretokenized: bool = False, add_special_tokens: bool = True
    ) -> Encoding:
        """Tokenize a text, or a pair of texts. Raise ValueError for None."""
        if sequence is None:
            raise ValueError("encode: `sequence` can't be `None`")
        return Encoding(
            self._tokenizer.encode(
                sequence, pair, is_pretokenized=is_pretokenized, add_special_tokens=add_special_tokens
            )
        )

    def encode_batch(
        self, inputs: Sequence[Any], add_special_tokens: bool = True, is_pretokenized: bool = False
    ) -> list[Encoding]:
        """Tokenize several texts, or pairs of texts. Raise ValueError for None."""
        if inputs is None:
            raise ValueError("encode_batch: `inputs` can't be `None`")
        encodings = self._tokenizer.encode_batch(
            list(inputs), is_pretokenized=is_pretokenized, add_special_tokens=add_special_tokens
        )
        return [Encoding(encoding) for encoding in encodings]

    def enable_padding(
        self,
        direction: str = "right",
        pad_id: int = 0,
        pad_type_id: int = 0,
        pad_token: str = "[PAD]",
        pad_to_multiple_of: int | None = None,
        length: int | None = None,
    ) -> None:
        """Pad all later encodings to `length`, or, without `length`, to the longest text of a batch."""
        self._tokenizer.enable_padding(
            direction=direction,
            pad_id=pad_id,
            pad_type_id=pad_type_id,
            pad_token=pad_token,
            pad_to_multiple_of=pad_to_multiple_of,
            length=length,
        )

    def enable_truncation(
        self, max_length: int, stride: int = 0, strategy: str = "longest_first", direction: str = "right"
    ) -> None:
        """Truncate all later encodings to `max_length` tokens."""
        self._tokenizer.enable_truncation(max_length, stride=stride, strategy=strategy, direction=direction)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def decode_batch(self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = True) -> list[str]:
        """Return the texts of several lists of token ids."""
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]:
        """Return the vocabulary: a dict from token to token id."""
        numbers: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens)
        return numbers

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        """Return the number of tokens in the vocabulary."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens))

    def __getattr__(self, name: str) -> Any:
        """Return a method that the `tokenizers` package has under the same name, such as `token_to_id`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._tokenizer, name)


class BertFastTokenizer(ErnieFastTokenizer):
    """A WordPiece tokenizer for BERT models, with the methods of `ErnieFastTokenizer`."""
