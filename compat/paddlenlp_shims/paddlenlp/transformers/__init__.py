"""`paddlenlp.transformers`: the tokenizers. Models are not here; services run their exported programs."""

from __future__ import annotations

from typing import Any

from .auto import AutoTokenizer, RobertaTokenizer
from .batch_encoding import BatchEncoding
from .byte_pairs import BartTokenizer, GPTTokenizer, RobertaBPETokenizer
from .sentence_pieces import (
    AlbertChineseTokenizer,
    AlbertEnglishTokenizer,
    AlbertTokenizer,
    ErnieMFastTokenizer,
    ErnieMTokenizer,
    XLNetTokenizer,
)
from .special_tokens import AddedToken, SpecialTokensMixin
from .strategies import PaddingStrategy, TruncationStrategy
from .tokenizer_utils import PretrainedTokenizer
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
    MegatronBertTokenizer,
    NeZhaTokenizer,
    PPMiniLMTokenizer,
    RobertaChineseTokenizer,
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
    "convbert": ("ConvBertTokenizer",),
    "electra": ("ElectraTokenizer",),
    "ernie": ("ErnieTokenizer",),
    "ernie_doc": ("ErnieDocTokenizer",),
    "ernie_gram": ("ErnieGramTokenizer",),
    "ernie_m": ("ErnieMTokenizer",),
    "gpt": ("GPTTokenizer",),
    "megatronbert": ("MegatronBertTokenizer",),
    "nezha": ("NeZhaTokenizer",),
    "ppminilm": ("PPMiniLMTokenizer",),
    "roberta": ("RobertaTokenizer", "RobertaChineseTokenizer", "RobertaBPETokenizer"),
    "skep": ("SkepTokenizer",),
    "tinybert": ("TinyBertTokenizer",),
    "tokenizer_utils_base": (
        "AddedToken", "BatchEncoding", "PaddingStrategy", "SpecialTokensMixin", "TruncationStrategy",
    ),
    "unimo": ("UNIMOTokenizer",),
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
    "ConvBertTokenizer",
    "ElectraTokenizer",
    "ErnieDocTokenizer",
    "ErnieFastTokenizer",
    "ErnieFasterTokenizer",
    "ErnieGramTokenizer",
    "ErnieMFastTokenizer",
    "ErnieMFasterTokenizer",
    "ErnieMTokenizer",
    "ErnieTokenizer",
    "GPTTokenizer",
    "MegatronBertTokenizer",
    "NeZhaTokenizer",
    "PPMiniLMTokenizer",
    "PaddingStrategy",
    "PretrainedTokenizer",
    "RobertaBPETokenizer",
    "RobertaChineseTokenizer",
    "RobertaTokenizer",
    "SkepTokenizer",
    "SpecialTokensMixin",
    "TinyBertFastTokenizer",
    "TinyBertFasterTokenizer",
    "TinyBertTokenizer",
    "TruncationStrategy",
    "UNIMOTokenizer",
    "WordpieceTokenizer",
    "XLNetTokenizer",
]


def tokenizer_names(family: str, module: str) -> tuple[str, ...]:
    """The names in a family's module, `bert` and `fast_tokenizer` say; none where PaddleNLP has no such."""
    if module in ("fast_tokenizer", "faster_tokenizer"):
        kind = "Fast" if module == "fast_tokenizer" else "Faster"
        return (f"{_IN_CPP[family]}{kind}Tokenizer",) if family in _IN_CPP else ()
    return _FAMILIES.get(family, ())


def __getattr__(name: str) -> Any:
    from paddlenlp_shims.places import sentence

    raise AttributeError(sentence(f"{__name__}.{name}"))
