"""PretrainedTokenizer: the calls that PaddleNLP's tokenizers have in common, as in its version 2.8.

Texts become tokens (a subclass's `_tokenize`), tokens become ids, and ids are truncated, joined with special
tokens and padded. Older argument names (`max_seq_len`, `pad_to_max_seq_len`, `truncation_strategy`) mean what
they meant. Source: paddlenlp 2.8.1, transformers/tokenizer_utils.py and tokenizer_utils_base.py (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..utils.log import logger
from .batch_encoding import BatchEncoding, as_lists
from .offset_mapping import Span
from .saved_files import load_tokenizer, save_tokenizer
from .strategies import CallOptions, PaddingStrategy, TruncationStrategy, lengths_longest_first, truncate_ids
from .text_to_tokens import ENDLESS, Ids, TextToTokens

_LARGE = int(1e20)


class PretrainedTokenizer(TextToTokens):
    """Base class of PaddleNLP's tokenizers: loading, calls with padding and truncation, and saving.

    All tokenizers have these further arguments: special tokens by role, `model_max_length`, `padding_side`
    and `truncation_side` ("right", "left").
    """

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str, *args: Any, **kwargs: Any) -> Any:
        """Load the tokenizer of a folder or of a named model, from one of the `candidate_folders`.

        kwargs override tokenizer_config.json. Raises FileNotFoundError that lists the missing files; no file
        is downloaded.
        """
        return load_tokenizer(cls, str(pretrained_model_name_or_path), args, kwargs)

    def save_pretrained(
        self, save_directory: str, filename_prefix: str | None = None, **kwargs: Any
    ) -> tuple[str, ...]:
        """Write the files for `from_pretrained(save_directory)`, and return their paths."""
        return save_tokenizer(self, str(save_directory), filename_prefix)

    def __call__(
        self,
        text: Any,
        text_pair: Any = None,
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool | str = False,
        padding: Any = False,
        truncation: Any = False,
        return_position_ids: bool | None = None,
        return_token_type_ids: bool | None = None,
        return_attention_mask: bool | None = None,
        return_length: bool = False,
        return_overflowing_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        return_dict: bool = True,
        return_offsets_mapping: bool = False,
        add_special_tokens: bool = True,
        pad_to_multiple_of: int | None = None,
        return_tensors: Any = None,
        verbose: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Tokenize a text or a pair of texts, or a batch of either; return the inputs for the model.

        text, text_pair: a str, or a list of str for a batch; with `is_split_into_words` a list of words, or a
        list of such lists. max_length: by default the model's maximum length; without either, texts are not
        truncated. If only max_length is set, without padding and truncation, texts are truncated (longest
        first). stride: in a batch of pairs, the second text is split into windows, each `stride` tokens after
        the previous window. return_dict: False returns a list with a dict for each text of a batch.
        return_tensors: "np" or "pd" returns arrays instead of lists. Raises ValueError and TypeError for
        values that are not texts.
        """
        for value in (text, text_pair):
            _check_text(value)
        if isinstance(is_split_into_words, str) and is_split_into_words != "token":
            raise ValueError(
                f"the value of `is_split_into_words` should be one of: {{True, False, 'token'}} but receive: "
                f"{is_split_into_words}"
            )
        is_list = isinstance(text, (list, tuple))
        is_batch = is_list and (not is_split_into_words or (text and isinstance(text[0], (list, tuple))))
        options: dict[str, Any] = {
            **kwargs, "max_length": max_length, "stride": stride, "is_split_into_words": is_split_into_words,
            "padding": padding, "truncation": truncation, "return_position_ids": return_position_ids,
            "return_token_type_ids": return_token_type_ids, "return_attention_mask": return_attention_mask,
            "return_length": return_length, "return_overflowing_tokens": return_overflowing_tokens,
            "return_special_tokens_mask": return_special_tokens_mask,
            "return_offsets_mapping": return_offsets_mapping, "add_special_tokens": add_special_tokens,
            "pad_to_multiple_of": pad_to_multiple_of, "return_tensors": return_tensors, "verbose": verbose,
        }  # fmt: skip
        if not is_batch:
            return self.encode(text, text_pair, **options)
        if isinstance(text_pair, str):
            raise TypeError(
                "when tokenizing batches of text, `text_pair` must be a list or tuple with the same "
                "length as `text`."
            )
        if text_pair is not None and len(text) != len(text_pair):
            raise ValueError(
                f"batch length of `text`: {len(text)} does not match batch length of `text_pair`: "
                f"{len(text_pair)}."
            )
        batch = text if text_pair is None else list(zip(text, text_pair, strict=True))
        return self.batch_encode(batch, return_dict=return_dict, **options)

    def encode(
        self,
        text: Any,
        text_pair: Any = None,
        add_special_tokens: bool = True,
        padding: Any = False,
        truncation: Any = False,
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool | str = False,
        pad_to_multiple_of: int | None = None,
        return_tensors: Any = None,
        **options: Any,
    ) -> BatchEncoding:
        """Tokenize one text, or a pair of texts; see `__call__`. A list of token ids is also accepted."""
        call_options = self._create_call_options(
            options, add_special_tokens=add_special_tokens, padding=padding, truncation=truncation,
            max_length=max_length, stride=stride, is_split_into_words=is_split_into_words,
            pad_to_multiple_of=pad_to_multiple_of,
        )  # fmt: skip
        ids = self._to_ids(text, call_options)
        pair_ids = None if text_pair is None else self._to_ids(text_pair, call_options)
        encoded = self._one(ids, pair_ids, call_options, text, text_pair)
        if call_options.padding is not PaddingStrategy.DO_NOT_PAD or call_options.return_attention_mask:
            self._pad(
                encoded,
                call_options.padding,
                call_options.max_length,
                call_options.pad_to_multiple_of,
                call_options.return_attention_mask,
            )
        if call_options.return_length:
            encoded["length"] = encoded["seq_len"] = len(encoded["input_ids"])
        return BatchEncoding(encoded, tensor_type=return_tensors, prepend_batch_axis=True)

    encode_plus = encode

    def batch_encode(
        self,
        batch_text_or_text_pairs: Sequence[Any],
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool | str = False,
        padding: Any = False,
        truncation: Any = False,
        return_dict: bool = True,
        add_special_tokens: bool = True,
        pad_to_multiple_of: int | None = None,
        return_tensors: Any = None,
        **options: Any,
    ) -> Any:
        """Tokenize several texts, or pairs of texts, which are tuples of two; see `__call__`."""
        call_options = self._create_call_options(
            options, add_special_tokens=add_special_tokens, padding=padding, truncation=truncation,
            max_length=max_length, stride=stride, is_split_into_words=is_split_into_words,
            pad_to_multiple_of=pad_to_multiple_of,
        )  # fmt: skip
        rows: list[dict[str, Any]] = []
        for number, entry in enumerate(batch_text_or_text_pairs):
            text, text_pair = _split_pair(entry, is_split_into_words)
            ids = self._to_ids(text, call_options)
            if text_pair is None or not stride > 0:
                pair_ids = None if text_pair is None else self._to_ids(text_pair, call_options)
                rows.append(self._one(ids, pair_ids, call_options, text, text_pair, with_length=True))
            else:
                rows += self._windows(number, text, text_pair, call_options)
        columns = {key: [row[key] for row in rows] for key in (rows[0] if rows else ())}
        mask = call_options.return_attention_mask
        padded = self.pad(
            columns, call_options.padding, call_options.max_length, call_options.pad_to_multiple_of, mask
        )
        if return_dict:
            return BatchEncoding(padded.data, tensor_type=return_tensors)
        return [dict(zip(padded.data, row, strict=True)) for row in zip(*padded.data.values(), strict=True)]

    def _create_call_options(self, options: Mapping[str, Any], **arguments: Any) -> CallOptions:
        """Return the resolved options of a call, with the tokenizer's own defaults."""
        padding, truncation, max_length = self._lengths(
            arguments.pop("padding"), arguments.pop("truncation"), arguments.pop("max_length"), options
        )
        multiple = arguments["pad_to_multiple_of"]
        both = (
            truncation is not TruncationStrategy.DO_NOT_TRUNCATE and padding is not PaddingStrategy.DO_NOT_PAD
        )
        if both and multiple is not None and max_length is not None and max_length % multiple:
            raise ValueError(
                f"Truncation and padding are both activated but truncation length ({max_length}) is not a "
                f"multiple of pad_to_multiple_of ({multiple})."
            )
        if options.get("return_token_type_ids") and not arguments["add_special_tokens"]:
            raise ValueError(
                "return_token_type_ids=True needs add_special_tokens=True; leave one of them out"
            )
        by_default = {
            f"return_{name}": name in self.model_input_names
            for name in ("position_ids", "token_type_ids", "attention_mask")
        }
        optional = ("length", "overflowing_tokens", "special_tokens_mask", "offsets_mapping")
        returned = {**by_default, **dict.fromkeys((f"return_{name}" for name in optional), False)}
        for name in returned:
            if options.get(name) is not None:
                returned[name] = bool(options[name])
        return CallOptions(
            padding=padding, truncation=truncation, max_length=max_length, **arguments, **returned,
            text_options={name: options[name] for name in self.text_options if name in options},
        )  # fmt: skip

    def _lengths(
        self, padding: Any, truncation: Any, max_length: int | None, options: Mapping[str, Any]
    ) -> tuple[PaddingStrategy, TruncationStrategy, int | None]:
        """Return padding strategy, truncation strategy and maximum length of a call.

        options: may include these arguments under PaddleNLP's older names. Raises ValueError if padding is
        requested and there is no pad_token.
        """
        if max_length is None:
            max_length = options.get("max_seq_len") or None
        old_truncation = options.get("truncation_strategy", "do_not_truncate")
        if max_length is not None and padding is False and truncation is False:
            truncation = "longest_first"
        if padding is False and options.get("pad_to_max_seq_len"):
            padding = "longest" if max_length is None else "max_length"
        pad = PaddingStrategy({True: "longest", False: "do_not_pad"}.get(padding, padding))
        if truncation is False:
            truncation = old_truncation
        cut = TruncationStrategy({True: "longest_first", None: "do_not_truncate"}.get(truncation, truncation))
        if max_length is None:
            endless = self.model_max_length > _LARGE
            if pad is PaddingStrategy.MAX_LENGTH:
                pad, max_length = (
                    (PaddingStrategy.DO_NOT_PAD, None) if endless else (pad, self.model_max_length)
                )
            if cut is not TruncationStrategy.DO_NOT_TRUNCATE:
                cut, max_length = (
                    (TruncationStrategy.DO_NOT_TRUNCATE, max_length)
                    if endless
                    else (cut, self.model_max_length)
                )
        if pad is not PaddingStrategy.DO_NOT_PAD and (not self.pad_token or self.pad_token_id < 0):
            raise ValueError("the tokenizer has no pad_token to pad with; set tokenizer.pad_token")
        return pad, cut, max_length

    def _to_ids(self, text: Any, call_options: CallOptions) -> Ids:
        """Return the token ids of a text, or of a list of words, tokens or ids.

        Raises ValueError for other values.
        """
        if isinstance(text, str):
            ids: Ids = self.convert_tokens_to_ids(self.tokenize(text, **call_options.text_options))
            return ids
        if isinstance(text, (list, tuple)) and text and isinstance(text[0], str):
            if not call_options.is_split_into_words:
                return list(self.convert_tokens_to_ids(text))
            options = {**call_options.text_options, "is_split_into_words": True}
            words = (self.tokenize(word, **options) for word in text)
            return list(self.convert_tokens_to_ids([token for tokens in words for token in tokens]))
        if isinstance(text, (list, tuple)) and text and isinstance(text[0], int):
            return list(text)
        raise ValueError(
            f"Input {text!r:.200} is not valid. Should be a string, a list/tuple of strings or a "
            "list/tuple of integers."
        )

    def _one(
        self,
        ids: Ids,
        pair_ids: Ids | None,
        call_options: CallOptions,
        text: Any,
        text_pair: Any,
        with_length: bool = False,
    ) -> dict[str, Any]:
        """Return the model's inputs for a text or pair: truncated, with special tokens, not yet padded."""
        longest_first = call_options.truncation is TruncationStrategy.LONGEST_FIRST
        if call_options.return_overflowing_tokens and longest_first and pair_ids is not None:
            raise ValueError(
                "Not possible to return overflowing tokens for pair of sequences with the "
                "`longest_first`. Please "
                "select another truncation strategy, for instance `only_second` or `only_first`."
            )
        around = (
            self.num_special_tokens_to_add(pair_ids is not None) if call_options.add_special_tokens else 0
        )
        total = len(ids) + len(pair_ids or []) + around
        over = total - call_options.max_length if call_options.max_length else 0
        encoded: dict[str, Any] = {}
        cut: list[Any] = []
        if call_options.truncation is not TruncationStrategy.DO_NOT_TRUNCATE:
            ids, pair_ids, cut = self.truncate_sequences(
                ids, pair_ids, over, call_options.truncation, call_options.stride
            )
        if call_options.return_overflowing_tokens:
            encoded["overflowing_tokens"] = cut
            encoded["num_truncated_tokens"] = over
        encoded |= self._row(ids, pair_ids, call_options)
        if call_options.return_offsets_mapping:
            spans = self.get_offset_mapping(text) or []
            pair_spans = self.get_offset_mapping(text_pair)
            spans, pair_spans, _ = self.truncate_sequences(
                spans, pair_spans, over, call_options.truncation, call_options.stride
            )
            encoded["offset_mapping"] = self._spans(spans, pair_spans, call_options)
        if call_options.return_position_ids:
            encoded["position_ids"] = list(range(len(encoded["input_ids"])))
        if call_options.return_length and with_length:
            encoded["length"] = encoded["seq_len"] = len(encoded["input_ids"])
        return encoded

    def _row(self, ids: Ids, pair_ids: Ids | None, call_options: CallOptions) -> dict[str, Any]:
        """Return input ids with special tokens, and the requested type ids and special-token mask."""
        if call_options.add_special_tokens:
            row = {"input_ids": self.build_inputs_with_special_tokens(ids, pair_ids)}
            types = self.create_token_type_ids_from_sequences(ids, pair_ids)
            special = self.get_special_tokens_mask(ids, pair_ids)
        else:
            row = {"input_ids": ids + (pair_ids or [])}
            types = special = [0] * len(row["input_ids"])
        if call_options.return_token_type_ids:
            row["token_type_ids"] = list(types)
        if call_options.return_special_tokens_mask:
            row["special_tokens_mask"] = list(special)
        return row

    def _spans(
        self, spans: list[Span], pair_spans: list[Span] | None, call_options: CallOptions
    ) -> list[Span]:
        if call_options.add_special_tokens:
            return self.build_offset_mapping_with_special_tokens(spans, pair_spans)
        return spans + (pair_spans or [])

    def _windows(
        self, number: int, text: Any, text_pair: Any, call_options: CallOptions
    ) -> list[dict[str, Any]]:
        """Return the model's inputs for a pair in windows: the first text with each part of the second.

        number: index of the pair in the batch. Raises ValueError if the first text leaves no room for the
        second.
        """
        ids = self._to_ids(text, call_options)
        pair_ids = self._to_ids(text_pair, call_options)
        around = self.num_special_tokens_to_add(pair=True) if call_options.add_special_tokens else 0
        room = (call_options.max_length or ENDLESS) - len(ids) - around
        if room <= 0:
            raise ValueError(
                f"the first text has {len(ids)} tokens, which leaves no room for the second in max_length "
                f"{call_options.max_length}; shorten it or raise max_length"
            )
        spans, pair_spans = self.get_offset_mapping(text) or [], self.get_offset_mapping(text_pair) or []
        rows: list[dict[str, Any]] = []
        start = 0
        while start < len(pair_ids):
            end = min(start + room, len(pair_ids))
            row: dict[str, Any] = {"offset_mapping": self._spans(spans, pair_spans[start:end], call_options)}
            row |= self._row(ids, pair_ids[start:end], call_options)
            if call_options.return_position_ids:
                row["position_ids"] = list(range(len(row["input_ids"])))
            if call_options.return_length:
                row["length"] = row["seq_len"] = len(row["input_ids"])
            row["overflow_to_sample"] = number
            rows.append(row)
            if end == len(pair_ids):
                break
            start += min(end - start, call_options.stride)
        return rows

    def truncate_sequences(
        self,
        ids: list[Any],
        pair_ids: list[Any] | None = None,
        num_tokens_to_remove: int = 0,
        truncation_strategy: Any = "longest_first",
        stride: int = 0,
    ) -> tuple[list[Any], list[Any] | None, list[Any]]:
        """Remove tokens from one or two texts. Returns the texts and the removed tokens.

        stride: number of kept tokens that are returned before the removed tokens. If a pair is truncated
        longest first, removed tokens are not returned. If the only text that may be truncated is too short,
        an error is logged and no token is removed.
        """
        if num_tokens_to_remove <= 0:
            return ids, pair_ids, []
        strategy = TruncationStrategy(truncation_strategy)
        from_left = self.truncation_side == "left"
        if strategy is TruncationStrategy.LONGEST_FIRST and pair_ids is not None:
            first, second = lengths_longest_first(len(ids), len(pair_ids), num_tokens_to_remove)
            return truncate_ids(ids, first, from_left), truncate_ids(pair_ids, second, from_left), []
        second_is_cut = strategy is TruncationStrategy.ONLY_SECOND
        if strategy is TruncationStrategy.DO_NOT_TRUNCATE or (second_is_cut and pair_ids is None):
            return ids, pair_ids, []
        long: list[Any] = (pair_ids or []) if second_is_cut else ids
        if len(long) <= num_tokens_to_remove:
            logger.error(
                f"We need to remove {num_tokens_to_remove} to truncate the input but the "
                f"{'second' if second_is_cut else 'first'} sequence has a length {len(long)}."
            )
            return ids, pair_ids, []
        overflow = min(len(long), stride + num_tokens_to_remove)
        cut = long[:overflow] if from_left else long[-overflow:]
        short = truncate_ids(long, len(long) - num_tokens_to_remove, from_left)
        return (ids, short, cut) if second_is_cut else (short, pair_ids, cut)

    # Padding:

    def pad(
        self,
        encoded_inputs: Any,
        padding: Any = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: Any = None,
        verbose: bool = True,
    ) -> BatchEncoding:
        """Pad the inputs of one text, or of a batch: a dict of lists, or a list of dicts.

        Raises ValueError without input_ids.
        """
        if isinstance(encoded_inputs, (list, tuple)) and isinstance(encoded_inputs[0], (dict, BatchEncoding)):
            encoded_inputs = {key: [row[key] for row in encoded_inputs] for key in encoded_inputs[0]}
        main = self.model_input_names[0]
        if main not in encoded_inputs:
            raise ValueError(
                "You should supply an encoding or a list of encodings to this method that includes "
                f"{main}, but you provided {list(encoded_inputs)}"
            )
        columns: dict[str, Any] = {
            key: as_lists(value) if hasattr(value, "shape") else value
            for key, value in encoded_inputs.items()
        }
        if not columns[main]:
            return BatchEncoding({**columns, "attention_mask": []} if return_attention_mask else columns)
        strategy, _, max_length = self._lengths(padding, None, max_length, {})
        if not isinstance(columns[main][0], (list, tuple)):
            self._pad(columns, strategy, max_length, pad_to_multiple_of, return_attention_mask)
            return BatchEncoding(columns, tensor_type=return_tensors)
        if len({len(column) for column in columns.values()}) > 1:
            raise AssertionError(
                "Some items in the output dictionary have a different batch size than others."
            )
        if strategy is PaddingStrategy.LONGEST:
            strategy, max_length = PaddingStrategy.MAX_LENGTH, max(map(len, columns[main]))
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        for row in rows:
            self._pad(row, strategy, max_length, pad_to_multiple_of, return_attention_mask)
        batch = {key: [row[key] for row in rows] for key in rows[0]}
        return BatchEncoding(batch, tensor_type=return_tensors)

    def _pad(
        self,
        row: dict[str, Any],
        strategy: PaddingStrategy,
        max_length: int | None,
        multiple: int | None,
        with_mask: bool | None,
    ) -> None:
        """Pad the lists of one text, in place."""
        main = self.model_input_names[0]
        length = len(row[main])
        if with_mask is None:
            with_mask = "attention_mask" in self.model_input_names or "attention_mask" in row
        if strategy is PaddingStrategy.LONGEST:
            max_length = length
        if max_length is not None and multiple is not None:
            max_length = -(-max_length // multiple) * multiple
        if with_mask and "attention_mask" not in row:
            row["attention_mask"] = [1] * length
        if strategy is PaddingStrategy.DO_NOT_PAD or max_length is None or length >= max_length:
            return
        fills = {
            main: self.pad_token_id,
            "token_type_ids": self.pad_token_type_id,
            "special_tokens_mask": 1,
            "offset_mapping": (0, 0),
            "position_ids": 0,
            "start_positions": 0,
            "end_positions": 0,
        }
        if with_mask:
            fills["attention_mask"] = 0
        for name, fill in fills.items():
            if isinstance(row.get(name), (list, tuple)):
                more = [fill] * (max_length - length)
                row[name] = [*more, *row[name]] if self.padding_side == "left" else [*row[name], *more]


class SequenceToSequence(PretrainedTokenizer):
    """Base class of the tokenizers of encoder-decoder models.

    By default, calls return an attention mask and no token types, and truncate texts to the model's length.
    """

    def __call__(  # type: ignore[override]
        self,
        text: Any,
        text_pair: Any = None,
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool | str = False,
        padding: Any = None,
        truncation: Any = "longest_first",
        return_position_ids: bool = False,
        return_token_type_ids: bool = False,
        return_attention_mask: bool = True,
        **options: Any,
    ) -> Any:
        if padding is None:
            padding = "max_length" if options.pop("pad_to_max_seq_len", False) else False
        if options.get("truncation_strategy", "longest_first") != "longest_first":
            truncation = options["truncation_strategy"]
        return super().__call__(
            text, text_pair, max_length, stride, is_split_into_words, padding, truncation,
            return_position_ids, return_token_type_ids, return_attention_mask, **options,
        )  # fmt: skip


def _check_text(value: Any) -> None:
    """Raise ValueError unless the value is None, a text, a list of texts, or a list of such lists."""
    inner = value
    for _ in range(2):
        if isinstance(inner, (list, tuple)) and inner:
            inner = inner[0]
    if inner is not None and not isinstance(inner, (str, list, tuple)):
        raise ValueError(
            "text input must of type `str` (single example), `List[str]` (batch or single "
            "pretokenized example) "
            "or `List[List[str]]` (batch of pretokenized examples)."
        )


def _split_pair(entry: Any, is_split_into_words: bool | str) -> tuple[Any, Any]:
    """Return the two texts of an entry in a batch. The second is None for a single text."""
    if not isinstance(entry, (list, tuple)):
        return entry, None
    if is_split_into_words and not (entry and isinstance(entry[0], (list, tuple))):
        return entry, None
    if len(entry) != 2:
        raise ValueError(
            f"an entry of a batch is a text or a pair of texts, not {len(entry)} of them: {entry!r:.200}"
        )
    return entry[0], entry[1]
