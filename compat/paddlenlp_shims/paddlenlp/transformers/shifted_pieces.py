"""Tokenizers with fairseq's SentencePiece models, whose token ids are shifted: mBART and ERNIE-Layout.

The first four ids are special tokens. The ids of SentencePiece follow, with an offset of one. Languages and
the mask token have the last ids. Source: paddlenlp 2.8.1, transformers/mbart/tokenizer.py and
ernie_layout/tokenizer.py (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from .offset_mapping import Span
from .sentence_pieces import UNDERLINE, ErnieMTokenizer, cut_piece, mask_with_spaces, sentence_pieces
from .text_to_tokens import Ids
from .tokenizer_utils import SequenceToSequence

OFFSET = 1


class ShiftedPieces:
    """Mixin for token ids in fairseq's order: `first_tokens`, the tokens of `sp_model`, `last_tokens`."""

    first_tokens: ClassVar[tuple[str, ...]]
    last_tokens: ClassVar[tuple[str, ...]]
    sp_model: Any

    def _number_tokens(self) -> None:
        first = {token: number for number, token in enumerate(self.first_tokens)}
        last = {token: number for number, token in enumerate(self.last_tokens, len(self.sp_model) + OFFSET)}
        self._numbers = first | last
        self._tokens = {number: token for token, number in self._numbers.items()}

    @property
    def vocab_size(self) -> int:
        return len(self.sp_model) + OFFSET + len(self.last_tokens)

    @property
    def vocab(self) -> Any:
        return self.get_vocab()

    def get_vocab(self) -> dict[str, int]:
        added: dict[str, int] = self.added_tokens_encoder  # type: ignore[attr-defined]
        return {self._convert_id_to_token(number): number for number in range(self.vocab_size)} | added

    def _convert_token_to_id(self, token: str) -> int:
        if token in self._numbers:
            return self._numbers[token]
        number = int(self.sp_model.PieceToId(token))  # 0 is the number of unknown pieces
        return number + OFFSET if number else int(self.unk_token_id)  # type: ignore[attr-defined]

    def _convert_id_to_token(self, index: int) -> str:
        token = self._tokens.get(index)
        return str(self.sp_model.IdToPiece(index - OFFSET)) if token is None else token


_LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM "
    "ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
_MORE_LANGUAGES = (
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE "
    "sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)


class MBartTokenizer(ShiftedPieces, SequenceToSequence):
    """The tokenizer of mBART models: A </s> and the language of the text.

    src_lang: language of the texts, "en_XX" by default. `set_src_lang_special_tokens` changes it.
    """

    FAIRSEQ_LANGUAGE_CODES: ClassVar[list[str]] = _LANGUAGES.split()
    resource_files_names: ClassVar[dict[str, str]] = {"vocab_file": "sentencepiece.bpe.model"}
    arguments: ClassVar[dict[str, Any]] = {
        "src_lang": None,
        "tgt_lang": None,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "sep_token": "</s>",
        "cls_token": "<s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
        "sp_model_kwargs": None,
        "additional_special_tokens": None,
    }
    first_tokens: ClassVar[tuple[str, ...]] = ("<s>", "<pad>", "</s>", "<unk>")
    last_tokens: ClassVar[tuple[str, ...]] = (*FAIRSEQ_LANGUAGE_CODES, "<mask>")
    model_input_names: list[str] = ["input_ids"]
    prefix_tokens: Ids
    suffix_tokens: Ids

    def _set_special_tokens(self, settings: Any) -> None:
        more = [*self.FAIRSEQ_LANGUAGE_CODES, *(settings["additional_special_tokens"] or ())]
        mask = mask_with_spaces(settings["mask_token"])
        additional = list(dict.fromkeys(more))
        super()._set_special_tokens({**settings, "mask_token": mask, "additional_special_tokens": additional})

    def _load(self, settings: dict[str, Any]) -> None:
        self.sp_model = sentence_pieces(settings.get("vocab_file"))
        self._number_tokens()
        self.lang_code_to_id = {code: self._numbers[code] for code in self.FAIRSEQ_LANGUAGE_CODES}
        self.src_lang: str = settings["src_lang"] or "en_XX"
        self.tgt_lang: str | None = settings["tgt_lang"]
        self.set_src_lang_special_tokens(self.src_lang)

    def set_src_lang_special_tokens(self, src_lang: str) -> None:
        """Set the language code that is added to later texts."""
        self.cur_lang_code_id = self.lang_code_to_id[src_lang]
        self.prefix_tokens, self.suffix_tokens = [], [self.eos_token_id, self.cur_lang_code_id]

    def set_tgt_lang_special_tokens(self, tgt_lang: str) -> None:
        """Set the language code that is added to later texts, to tokenize translations."""
        self.set_src_lang_special_tokens(tgt_lang)

    def _tokenize(self, text: str) -> list[str]:
        pieces: list[str] = self.sp_model.encode(text, out_type=str)
        return pieces

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        return "".join(tokens).replace(UNDERLINE, " ").strip()

    def convert_ids_to_string(self, ids: Ids) -> str:
        """Return the text of token ids."""
        return self.convert_tokens_to_string(self.convert_ids_to_tokens(ids))

    def build_inputs_with_special_tokens(self, token_ids_0: Ids, token_ids_1: Ids | None = None) -> Ids:
        return [*self.prefix_tokens, *token_ids_0, *(token_ids_1 or ()), *self.suffix_tokens]

    def build_offset_mapping_with_special_tokens(
        self, offset_mapping_0: list[Span], offset_mapping_1: list[Span] | None = None
    ) -> list[Span]:
        """Return the spans of the tokens between two (0, 0), as PaddleNLP does.

        The number of special tokens that really surround the texts is ignored.
        """
        return [(0, 0), *offset_mapping_0, *(offset_mapping_1 or ()), (0, 0)]

    def create_token_type_ids_from_sequences(self, token_ids_0: Ids, token_ids_1: Ids | None = None) -> Ids:
        """Return the token type ids of the texts without special tokens, as PaddleNLP does."""
        return [0] * len(token_ids_0) + [1] * len(token_ids_1 or ())

    def _surrounded(self, first: list[Any], second: list[Any] | None, cls: Any, sep: Any) -> list[Any]:
        before, after = [cls] * len(self.prefix_tokens), [sep] * len(self.suffix_tokens)
        return [*before, *first, *(second or ()), *after]

    def _ids_in_mask(self) -> Ids:
        return self.all_special_ids


class MBart50Tokenizer(MBartTokenizer):
    """The tokenizer of mBART-50 models: the language of the text, A </s>."""

    FAIRSEQ_LANGUAGE_CODES: ClassVar[list[str]] = [*_LANGUAGES.split(), *_MORE_LANGUAGES.split()]
    last_tokens: ClassVar[tuple[str, ...]] = (*FAIRSEQ_LANGUAGE_CODES, "<mask>")

    def set_src_lang_special_tokens(self, src_lang: str) -> None:
        """Set the language code that is added to later texts."""
        self.cur_lang_code_id = self.lang_code_to_id[src_lang]
        self.prefix_tokens, self.suffix_tokens = [self.cur_lang_code_id], [self.eos_token_id]


class ErnieLayoutTokenizer(ShiftedPieces, ErnieMTokenizer):
    """The tokenizer of ERNIE-Layout models: [CLS] A [SEP] [SEP] B [SEP].

    The tokenizer does not handle page layout: the service must supply the boxes of a page.
    do_tokenize_postprocess: split tokens at Chinese characters, punctuation and digits, for UIE-X.
    """

    arguments: ClassVar[dict[str, Any]] = {
        "do_tokenize_postprocess": False,
        "sep_token": "[SEP]",
        "cls_token": "[CLS]",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "mask_token": "[MASK]",
    }
    first_tokens: ClassVar[tuple[str, ...]] = ("[CLS]", "[PAD]", "[SEP]", "[UNK]")
    last_tokens: ClassVar[tuple[str, ...]] = ("[MASK]",)
    do_lower_case = False

    def _set_special_tokens(self, settings: Any) -> None:
        super()._set_special_tokens({**settings, "mask_token": mask_with_spaces(settings["mask_token"])})

    def _load(self, settings: dict[str, Any]) -> None:
        self.do_tokenize_postprocess: bool = settings["do_tokenize_postprocess"]
        self.sp_model = sentence_pieces(settings.get("sentencepiece_model_file"))
        self._number_tokens()

    def _tokenize(self, text: str) -> list[str]:
        pieces: list[str] = self.sp_model.EncodeAsPieces(text)
        if not self.do_tokenize_postprocess:
            return pieces
        return [part for piece in pieces for part in cut_piece(piece)]

    def create_token_type_ids_from_sequences(self, token_ids_0: Ids, token_ids_1: Ids | None = None) -> Ids:
        return [0] * len(self._surrounded(token_ids_0, token_ids_1, 0, 0))
