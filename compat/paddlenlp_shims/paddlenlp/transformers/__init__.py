"""`paddlenlp.transformers`: PaddleNLP's tokenizers, without models: services run exported models."""

from __future__ import annotations

from typing import Any

from .auto import AutoTokenizer, RobertaTokenizer
from .batch_encoding import BatchEncoding
from .byte_pairs import BartTokenizer, GPTTokenizer, RobertaBPETokenizer
from .entity_spans import LukeTokenizer
from .sentence_pieces import (
    AlbertChineseTokenizer,
    AlbertEnglishTokenizer,
    AlbertTokenizer,
    ErnieMFastTokenizer,
    ErnieMTokenizer,
    T5Tokenizer,
    XLNetTokenizer,
)
from .shifted_pieces import ErnieLayoutTokenizer, MBart50Tokenizer, MBartTokenizer
from .special_tokens import AddedToken, SpecialTokensMixin
from .strategies import PaddingStrategy, TruncationStrategy
from .tokenizer_utils import PretrainedTokenizer
from .word_pairs import CLIPTokenizer, XLMTokenizer
from .wordpiece import (
    BasicTokenizer,
    BertFastTokenizer,
    BertTokenizer,
    ConvBertTokenizer,
    ElectraTokenizer,
    ErnieDocTokenizer,
    ErnieFastTokenizer,
    ErnieGramTokenizer,
    ErnieTokenizer,
    JiebaBasicTokenizer,
    MegatronBertTokenizer,
    NeZhaTokenizer,
    PPMiniLMTokenizer,
    RobertaChineseTokenizer,
    RoFormerTokenizer,
    SkepTokenizer,
    TinyBertFastTokenizer,
    TinyBertTokenizer,
    UNIMOTokenizer,
    WordpieceTokenizer,
)

# As they were called in 2022.
BertFasterTokenizer = BertFastTokenizer
ErnieFasterTokenizer = ErnieFastTokenizer
ErnieMFasterTokenizer = ErnieMFastTokenizer
TinyBertFasterTokenizer = TinyBertFastTokenizer

_FAMILIES = {
    "albert": ("AlbertTokenizer", "AlbertChineseTokenizer", "AlbertEnglishTokenizer"),
    "auto": ("AutoTokenizer",),
    "bart": ("BartTokenizer",),
    "bert": ("BasicTokenizer", "BertTokenizer", "WordpieceTokenizer"),
    "clip": ("CLIPTokenizer",),
    "convbert": ("ConvBertTokenizer",),
    "electra": ("ElectraTokenizer",),
    "ernie": ("ErnieTokenizer",),
    "ernie_doc": ("ErnieDocTokenizer",),
    "ernie_gram": ("ErnieGramTokenizer",),
    "ernie_layout": ("ErnieLayoutTokenizer",),
    "ernie_m": ("ErnieMTokenizer",),
    "gpt": ("GPTTokenizer",),
    "luke": ("LukeTokenizer",),
    "mbart": ("MBartTokenizer", "MBart50Tokenizer"),
    "megatronbert": ("MegatronBertTokenizer",),
    "nezha": ("NeZhaTokenizer",),
    "ppminilm": ("PPMiniLMTokenizer",),
    "roberta": ("RobertaTokenizer", "RobertaChineseTokenizer", "RobertaBPETokenizer"),
    "roformer": ("RoFormerTokenizer", "JiebaBasicTokenizer"),
    "skep": ("SkepTokenizer",),
    "t5": ("T5Tokenizer",),
    "tinybert": ("TinyBertTokenizer",),
    "tokenizer_utils_base": (
        "AddedToken", "BatchEncoding", "PaddingStrategy", "SpecialTokensMixin", "TruncationStrategy",
    ),
    "unimo": ("UNIMOTokenizer",),
    "xlm": ("XLMTokenizer",),
    "xlnet": ("XLNetTokenizer",),
}  # fmt: skip
"""Tokenizers by the folder that PaddleNLP has them in."""
_IN_CPP = {"bert": "Bert", "ernie": "Ernie", "ernie_m": "ErnieM", "tinybert": "TinyBert"}

__all__ = [
    "AddedToken",
    "AlbertChineseTokenizer",
    "AlbertEnglishTokenizer",
    "AlbertTokenizer",
    "AutoTokenizer",
    "BartTokenizer",
    "BasicTokenizer",
    "BatchEncoding",
    "BertFastTokenizer",
    "BertFasterTokenizer",
    "BertTokenizer",
    "CLIPTokenizer",
    "ConvBertTokenizer",
    "ElectraTokenizer",
    "ErnieDocTokenizer",
    "ErnieFastTokenizer",
    "ErnieFasterTokenizer",
    "ErnieGramTokenizer",
    "ErnieLayoutTokenizer",
    "ErnieMFastTokenizer",
    "ErnieMFasterTokenizer",
    "ErnieMTokenizer",
    "ErnieTokenizer",
    "GPTTokenizer",
    "JiebaBasicTokenizer",
    "LukeTokenizer",
    "MBart50Tokenizer",
    "MBartTokenizer",
    "MegatronBertTokenizer",
    "NeZhaTokenizer",
    "PPMiniLMTokenizer",
    "PaddingStrategy",
    "PretrainedTokenizer",
    "RoFormerTokenizer",
    "RobertaBPETokenizer",
    "RobertaChineseTokenizer",
    "RobertaTokenizer",
    "SkepTokenizer",
    "SpecialTokensMixin",
    "T5Tokenizer",
    "TinyBertFastTokenizer",
    "TinyBertFasterTokenizer",
    "TinyBertTokenizer",
    "TruncationStrategy",
    "UNIMOTokenizer",
    "WordpieceTokenizer",
    "XLMTokenizer",
    "XLNetTokenizer",
]


def tokenizer_names(family: str, module: str) -> tuple[str, ...]:
    """Return the class names in PaddleNLP's module of a model family, such as `bert.fast_tokenizer`.

    family: the model family's name, such as "bert". Empty if PaddleNLP has no such module.
    """
    if module in ("fast_tokenizer", "faster_tokenizer"):
        kind = "Fast" if module == "fast_tokenizer" else "Faster"
        return (f"{_IN_CPP[family]}{kind}Tokenizer",) if family in _IN_CPP else ()
    return _FAMILIES.get(family, ())


def __getattr__(name: str) -> Any:
    from paddlenlp_shims.places import sentence

    raise AttributeError(sentence(f"{__name__}.{name}"))
