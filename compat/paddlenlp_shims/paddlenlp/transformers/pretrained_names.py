"""The models that PaddleNLP knows by name, with their tokenizer class, its arguments and maximum length.

Source: `pretrained_init_configuration` and `max_model_input_sizes` of paddlenlp 2.8.1.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Pretrained(NamedTuple):
    """A group of named models with the same tokenizer class and arguments.

    longest: maximum number of tokens of a text; None without a limit.
    """

    tokenizer: str
    arguments: dict[str, Any]
    longest: int | None
    names: str


_XLM = (
    ("xlm-mlm-ende-1024 xlm-clm-ende-1024", True, "de en"),
    ("xlm-mlm-enfr-1024 xlm-clm-enfr-1024", True, "en fr"),
    ("xlm-mlm-enro-1024", True, "en ro"),
    (
        "xlm-mlm-tlm-xnli15-1024 xlm-mlm-xnli15-1024",
        True,
        "ar bg de el en es fr hi ru sw th tr ur vi zh",
    ),
    ("xlm-mlm-17-1280", False, "ar de en es fr hi it ja ko nl pl pt ru sv tr vi zh"),
    (
        "xlm-mlm-100-1280",
        False,
        "af als am an ang ar arz ast az bar be bg bn br bs ca ceb ckb cs cy da de el en eo es et eu "
        "fa fi fr fy ga gan gl gu he hi hr hu hy ia id is it ja jv ka kk kn ko ku la lb lt lv mk ml "
        "mn mr ms my nds ne nl nn no oc pl pt ro ru scn sco sh si simple sk sl sq sr sv sw ta te th "
        "tl tr tt uk ur uz vi war wuu yi zh zh_classical zh_min_nan zh_yue",
    ),
)
"""XLM's models: names, whether texts become lower case, languages in the order of their numbers."""

PRETRAINED = (
    Pretrained(
        "BertTokenizer",
        {"do_lower_case": True},
        512,
        "bert-base-uncased bert-large-uncased bert-base-multilingual-uncased simbert-base-chinese "
        "uer/chinese-roberta-base uer/chinese-roberta-medium uer/chinese-roberta-6l-768h "
        "uer/chinese-roberta-small uer/chinese-roberta-mini uer/chinese-roberta-tiny",
    ),
    Pretrained(
        "BertTokenizer",
        {"do_lower_case": False},
        512,
        "bert-base-cased bert-large-cased bert-base-multilingual-cased bert-base-chinese bert-wwm-chinese "
        "bert-wwm-ext-chinese macbert-large-chinese macbert-base-chinese",
    ),
    Pretrained(
        "ErnieTokenizer",
        {"do_lower_case": True},
        513,
        "ernie-1.0 ernie-1.0-base-zh ernie-2.0-base-zh rocketqa-zh-dureader-query-encoder "
        "rocketqa-zh-dureader-para-encoder rocketqa-zh-dureader-cross-encoder",
    ),
    Pretrained(
        "ErnieTokenizer",
        {"do_lower_case": True},
        512,
        "ernie-1.0-base-zh-cw ernie-1.0-large-zh-cw ernie-2.0-large-zh ernie-2.0-base-en "
        "ernie-2.0-base-en-finetuned-squad ernie-2.0-large-en rocketqa-v1-marco-query-encoder "
        "rocketqa-v1-marco-para-encoder rocketqa-v1-marco-cross-encoder rocketqav2-en-marco-cross-encoder "
        "rocketqav2-en-marco-query-encoder rocketqav2-en-marco-para-encoder uie-base uie-medium uie-mini "
        "uie-micro uie-nano uie-base-en uie-senta-base uie-senta-medium uie-senta-mini uie-senta-micro "
        "uie-senta-nano uie-base-answer-extractor uie-base-qa-filter "
        "ernie-search-base-dual-encoder-marco-en ernie-search-large-cross-encoder-marco-en utc-large",
    ),
    Pretrained(
        "ErnieTokenizer",
        {"do_lower_case": True},
        1024,
        "ernie-gen-base-en ernie-gen-large-en ernie-gen-large-en-430g",
    ),
    Pretrained(
        "ErnieTokenizer",
        {"do_lower_case": True},
        2048,
        "ernie-3.0-base-zh ernie-3.0-xbase-zh ernie-3.0-medium-zh ernie-3.0-mini-zh ernie-3.0-micro-zh "
        "ernie-3.0-nano-zh ernie-3.0-tiny-base-v1-zh ernie-3.0-tiny-medium-v1-zh "
        "ernie-3.0-tiny-mini-v1-zh ernie-3.0-tiny-micro-v1-zh ernie-3.0-tiny-nano-v1-zh "
        "rocketqa-zh-base-query-encoder rocketqa-zh-base-para-encoder rocketqa-zh-medium-query-encoder "
        "rocketqa-zh-medium-para-encoder rocketqa-zh-mini-query-encoder rocketqa-zh-mini-para-encoder "
        "rocketqa-zh-micro-query-encoder rocketqa-zh-micro-para-encoder rocketqa-zh-nano-query-encoder "
        "rocketqa-zh-nano-para-encoder rocketqa-base-cross-encoder rocketqa-medium-cross-encoder "
        "rocketqa-mini-cross-encoder rocketqa-micro-cross-encoder rocketqa-nano-cross-encoder "
        "ernie-3.0-tiny-base-v2-zh ernie-3.0-tiny-medium-v2-zh ernie-3.0-tiny-mini-v2-zh "
        "ernie-3.0-tiny-micro-v2-zh ernie-3.0-tiny-nano-v2-zh ernie-3.0-tiny-pico-v2-zh utc-xbase "
        "utc-base utc-medium utc-mini utc-micro utc-nano utc-pico",
    ),
    Pretrained(
        "ErnieTokenizer",
        {"do_lower_case": True},
        514,
        "ernie-3.0-tiny-mini-v2-en",
    ),
    Pretrained(
        "RobertaChineseTokenizer",
        {"do_lower_case": True},
        512,
        "hfl/roberta-wwm-ext hfl/roberta-wwm-ext-large hfl/rbt6 hfl/rbt4 hfl/rbt3 hfl/rbtl3",
    ),
    Pretrained(
        "RobertaBPETokenizer",
        {},
        512,
        "roberta-base roberta-large",
    ),
    Pretrained(
        "ErnieMTokenizer",
        {"do_lower_case": False},
        514,
        "ernie-m-base ernie-m-large uie-m-base uie-m-large",
    ),
    Pretrained(
        "AlbertTokenizer",
        {
            "do_lower_case": True,
            "remove_space": True,
            "keep_accents": False,
            "unk_token": "<unk>",
            "pad_token": "<pad>",
        },
        512,
        "albert-base-v1 albert-large-v1 albert-xlarge-v1 albert-xxlarge-v1 albert-base-v2 albert-large-v2 "
        "albert-xlarge-v2 albert-xxlarge-v2",
    ),
    Pretrained(
        "AlbertTokenizer",
        {"do_lower_case": False, "unk_token": "[UNK]", "pad_token": "[PAD]"},
        512,
        "albert-chinese-tiny albert-chinese-small albert-chinese-base albert-chinese-large "
        "albert-chinese-xlarge albert-chinese-xxlarge",
    ),
    Pretrained(
        "XLNetTokenizer",
        {"do_lower_case": False},
        None,
        "xlnet-base-cased xlnet-large-cased chinese-xlnet-base chinese-xlnet-mid chinese-xlnet-large",
    ),
    Pretrained(
        "ElectraTokenizer",
        {"do_lower_case": True},
        512,
        "electra-small electra-base electra-large chinese-electra-base chinese-electra-small "
        "ernie-health-chinese",
    ),
    Pretrained(
        "NeZhaTokenizer",
        {"do_lower_case": False},
        512,
        "nezha-base-chinese nezha-base-wwm-chinese nezha-large-chinese nezha-large-wwm-chinese",
    ),
    Pretrained(
        "PPMiniLMTokenizer",
        {"do_lower_case": True},
        512,
        "ppminilm-6l-768h",
    ),
    Pretrained(
        "TinyBertTokenizer",
        {"do_lower_case": True},
        512,
        "tinybert-4l-312d tinybert-6l-768d tinybert-4l-312d-v2 tinybert-6l-768d-v2 tinybert-4l-312d-zh "
        "tinybert-6l-768d-zh",
    ),
    Pretrained(
        "ErnieGramTokenizer",
        {"do_lower_case": True},
        512,
        "ernie-gram-zh ernie-gram-zh-finetuned-dureader-robust",
    ),
    Pretrained(
        "MegatronBertTokenizer",
        {"do_lower_case": True},
        512,
        "megatronbert-uncased",
    ),
    Pretrained(
        "MegatronBertTokenizer",
        {"do_lower_case": False},
        512,
        "megatronbert-cased",
    ),
    Pretrained(
        "ConvBertTokenizer",
        {"do_lower_case": True},
        512,
        "convbert-base convbert-medium-small convbert-small",
    ),
    Pretrained(
        "SkepTokenizer",
        {
            "do_lower_case": True,
            "use_bpe_encoder": False,
            "need_token_type_id": True,
            "add_two_sep_token_inter": False,
        },
        512,
        "skep_ernie_1.0_large_ch skep_ernie_2.0_large_en",
    ),
    Pretrained("T5Tokenizer", {"do_lower_case": False}, 512, "t5-small t5-base t5-large t5-3b t5-11b"),
    Pretrained("T5Tokenizer", {"do_lower_case": False}, None, "t5-v1_1-base t5-v1_1-large"),
    Pretrained("MBartTokenizer", {}, 1024, "mbart-large-cc25 mbart-large-en-ro"),
    Pretrained(
        "MBart50Tokenizer",
        {},
        1024,
        "mbart-large-50-one-to-many-mmt mbart-large-50-many-to-one-mmt mbart-large-50-many-to-many-mmt",
    ),
    Pretrained(
        "RoFormerTokenizer", {"do_lower_case": True, "use_jieba": True}, 512, "roformer-chinese-small"
    ),
    Pretrained(
        "RoFormerTokenizer", {"do_lower_case": True, "use_jieba": True}, 1536, "roformer-chinese-base"
    ),
    Pretrained(
        "RoFormerTokenizer",
        {"do_lower_case": True, "use_jieba": False},
        512,
        "roformer-chinese-char-small roformer-chinese-char-base roformer-chinese-sim-char-ft-small "
        "roformer-chinese-sim-char-ft-base roformer-chinese-sim-char-small roformer-chinese-sim-char-base",
    ),
    Pretrained(
        "RoFormerTokenizer",
        {"do_lower_case": True, "use_jieba": False},
        128,
        "roformer-english-small-discriminator roformer-english-small-generator",
    ),
    Pretrained("ErnieLayoutTokenizer", {"do_tokenize_postprocess": False}, 514, "ernie-layoutx-base-uncased"),
    Pretrained("ErnieLayoutTokenizer", {"do_tokenize_postprocess": True}, 514, "uie-x-base"),
    Pretrained("LukeTokenizer", {"do_lower_case": True}, 514, "luke-base luke-large"),
    Pretrained("XLMTokenizer", {"do_lowercase_and_remove_accent": True}, 512, "xlm-mlm-en-2048"),
    *(
        Pretrained(
            "XLMTokenizer",
            {
                "do_lowercase_and_remove_accent": lower,
                "lang2id": {lang: number for number, lang in enumerate(languages.split())},
                "id2lang": dict(enumerate(languages.split())),
            },
            512,
            names,
        )
        for names, lower, languages in _XLM
    ),
)
_BY_NAME = {name: models for models in PRETRAINED for name in models.names.split()}


def find_tokenizer(name: str) -> str | None:
    """Return the tokenizer's class name for a model that PaddleNLP knows by name; None for others."""
    models = _BY_NAME.get(name)
    return None if models is None else models.tokenizer


def get_configuration(name: str) -> dict[str, Any]:
    """Return the tokenizer's arguments for a model that PaddleNLP knows by name; empty for others."""
    models = _BY_NAME.get(name)
    return {} if models is None else dict(models.arguments)


def get_max_text_length(name: str) -> int | None:
    """Return the maximum number of tokens for a model that PaddleNLP knows by name; None if unknown."""
    models = _BY_NAME.get(name)
    return None if models is None else models.longest
