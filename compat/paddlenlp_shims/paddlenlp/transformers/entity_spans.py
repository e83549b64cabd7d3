"""The tokenizer of LUKE models: RoBERTa's byte-level BPE, and entities at spans of a text.

Source: paddlenlp 2.8.1, transformers/luke/tokenizer.py (Apache-2.0).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

from .byte_pairs import RobertaBPETokenizer, existing_file
from .offset_mapping import Span
from .text_to_tokens import Ids, TextToTokens

UNKNOWN_ENTITY, MASKED_ENTITY = 1, 2


class LukeTokenizer(RobertaBPETokenizer):
    """The tokenizer of LUKE models: <s> A </s> </s> B </s>, and ids and positions of entities.

    entity_file: JSON, id by entity title. A call takes `entity_spans` and `entity_spans_pair`: where each
    entity begins and ends, in characters. `entities` and `entities_pair` are their titles; without titles the
    entities are masked. `max_mention_length` is the length of an entity's positions.
    """

    resource_files_names: ClassVar[dict[str, str]] = {
        **RobertaBPETokenizer.resource_files_names,
        "entity_file": "entity_vocab.json",
    }
    file_arguments: ClassVar[tuple[str, ...]] = ("vocab_file", "entity_file", "merges_file")
    arguments: ClassVar[dict[str, Any]] = {
        "do_lower_case": True,
        "unk_token": "<unk>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "cls_token": "<s>",
        "mask_token": "<mask>",
    }

    def _set_special_tokens(self, settings: Any) -> None:
        super()._set_special_tokens({"bos_token": "<s>", "eos_token": "</s>", **settings})

    def _load(self, settings: dict[str, Any]) -> None:
        super()._load(settings)
        entity_file = existing_file(settings.get("entity_file"))
        self.entity_vocab: dict[str, int] = json.loads(entity_file.read_text("utf-8"))
        roles = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
        self._unsplit_roles = [str(settings[role]) for role in roles]

    def __call__(  # type: ignore[override]
        self,
        text: Any,
        text_pair: Any = None,
        entity_spans: Any = None,
        entity_spans_pair: Any = None,
        entities: Any = None,
        entities_pair: Any = None,
        max_mention_length: int = 30,
        max_length: int | None = None,
        stride: int = 0,
        add_prefix_space: bool = False,
        is_split_into_words: bool | str = False,
        padding: Any = False,
        truncation: Any = "longest_first",
        return_position_ids: bool = True,
        return_token_type_ids: bool = False,
        return_attention_mask: bool = True,
        **options: Any,
    ) -> Any:
        """Tokenize texts with their entities, and return the inputs for the model.

        A batch with entities needs return_dict=False, as in PaddleNLP.
        """
        self.add_prefix_space = self.add_prefix_space or add_prefix_space
        encoded = super().__call__(
            text, text_pair, max_length, stride, is_split_into_words, padding, truncation,
            return_position_ids, return_token_type_ids, return_attention_mask, **options,
        )  # fmt: skip
        if not entity_spans:
            return encoded
        if isinstance(text, str):
            rows, texts, pairs = [encoded], [text], [text_pair]
            spans, titles = ([entity_spans], [entity_spans_pair]), ([entities], [entities_pair])
        else:
            rows, texts, pairs = [encoded[place] for place in range(len(text))], text, text_pair
            spans, titles = (entity_spans, entity_spans_pair), (entities, entities_pair)
        for place, row in enumerate(rows):
            row.update(
                self.entity_encode(
                    texts[place], _entry(titles[0], place), max_mention_length, spans[0][place]
                )
            )
            if entity_spans_pair:
                offset = row["input_ids"].index(self.sep_token_id) + 2
                second = self.entity_encode(
                    pairs[place], _entry(titles[1], place), max_mention_length, spans[1][place], 1, offset
                )
                row.update({name: row[name] + values for name, values in second.items()})
        return encoded

    def tokenize(self, text: str, add_prefix_space: bool = False, **kwargs: Any) -> list[str]:
        """Split a text into tokens. Spaces around special tokens, and around the text, are dropped."""
        unsplit = [*self.added_tokens_encoder, *self._unsplit_roles]
        parts = [text] if text.strip() else []
        for token in unsplit:
            parts = [p for part in parts for p in ([part] if part in unsplit else _split_at(part, token))]
        space = " " if add_prefix_space or self.add_prefix_space else ""
        tokens = ([part] if part in unsplit else self._tokenize(space + part) for part in parts)
        return [token for tokens_of_part in tokens for token in tokens_of_part]

    def add_special_tokens(self, token_list: Any) -> int:
        """Add tokens that are never split, and return their number.

        token_list: a list, or a dict with `additional_special_tokens`. All added tokens share one id, as in
        PaddleNLP.
        """
        tokens = token_list["additional_special_tokens"] if isinstance(token_list, dict) else token_list
        number = len(self.encoder)  # of all of them, as in PaddleNLP: models were trained with that
        for token in tokens:
            self.added_tokens_encoder[token] = number
            self.added_tokens_decoder[number] = token
        return len(tokens)

    def _convert_id_to_token(self, index: int) -> Any:
        return self.decoder.get(index)

    def get_offset_mapping(self, text: str | None) -> list[Span] | None:
        if text is None:
            return None
        return self._count_spans(self._tokenize(text))

    def create_token_type_ids_from_sequences(self, token_ids_0: Ids, token_ids_1: Ids | None = None) -> Ids:
        return TextToTokens.create_token_type_ids_from_sequences(self, token_ids_0, token_ids_1)

    # Entities:

    def get_entity_vocab(self) -> dict[str, int]:
        """Return the entity vocabulary: a dict from entity title to id."""
        return self.entity_vocab

    def convert_entity_to_id(self, entity: str) -> int | None:
        """Return the id of an entity; None, with a warning, for an unknown title."""
        number = self.entity_vocab.get(entity)
        if not number:
            warnings.warn(f"{entity} not found in entity thesaurus", stacklevel=2)
        return number or None

    def entity_encode(
        self,
        text: str,
        entities: Sequence[str] | None,
        max_mention_length: int,
        entity_spans: Sequence[Sequence[int]],
        ent_sep: int = 0,
        offset_a: int = 1,
    ) -> dict[str, Any]:
        """Return entity ids, type ids, attention mask and token positions of a text's entities.

        ent_sep: type id of the text. offset_a: position of the text's first token.
        """
        if entities:
            spans = list(entity_spans)[: len(entities)]
            ids = [self.convert_entity_to_id(title) or UNKNOWN_ENTITY for title in entities[: len(spans)]]
        else:
            spans, ids = list(entity_spans), [MASKED_ENTITY] * len(entity_spans)
        positions = []
        for first, last in spans:
            start = offset_a + len(self.tokenize(text[:first].strip()))
            length = len(self.tokenize(text[first:last].strip()))
            row = [-1] * max_mention_length
            row[:length] = range(start, start + length)
            positions.append(row)
        return {
            "entity_ids": ids,
            "entity_token_type_ids": [ent_sep] * len(spans),
            "entity_attention_mask": [1] * len(spans),
            "entity_position_ids": positions,
        }


def _entry(titles: Any, place: int) -> Any:
    return None if titles is None else titles[place]


def _split_at(part: str, token: str) -> list[str]:
    """Split a text at each occurrence of a token, which becomes a part of its own.

    Spaces around the parts are removed.
    """
    pieces = [piece for text in part.split(token) for piece in (text.strip(), token)]
    return [piece for piece in pieces[:-1] if piece]
