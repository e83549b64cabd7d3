"""Writes small vocabularies, and collects the answers of PaddleNLP's tokenizers to texts.

The fixture tests/fixtures/paddlenlp_tokens.json has the answers of PaddleNLP 2.8.1. In an environment with
that version, `jieba` and `sacremoses`, this command records it again:

    python -m tests.support.tokenizer_answers tests/fixtures/paddlenlp_tokens.json
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

WORDS = (
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"国足客场两球取胜的好不",
    "℃", "##℃", "5", "hello", "##s", ",", "，", "a", "b", "##c",
)  # fmt: skip
TEXTS = ("国足 hellos, a[MASK]B c", "hello hello a <mask> b", "ab  hello's 5℃", " hello</s>x")
LONG_WORDS = ("客场", "取胜")
PIECES = (
    "▁hello", "▁a", "hello", "▁b", "▁国", "足", "▁客场", "取胜", "国", "▁", "a", "b", "c", "s", "5", "x", ",",
    *"'BMASK[]<>/mask℃",
)  # fmt: skip
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>")
_MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello"), ("Ġ", "a"))
_WORD_MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o</w>"), ("hell", "o"), ("b", "c</w>"))
_BYTES = ("vocab.json", "merges.txt")
_PIECES = ("pieces.model",)

TOKENIZERS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "BartTokenizer": (_BYTES, {}),
    "ErnieDocTokenizer": (("vocab.txt",), {}),
    "GPTTokenizer": (_BYTES, {}),
    "UNIMOTokenizer": (("unimo.txt",), {}),
    "T5Tokenizer": (_PIECES, {"extra_ids": 3}),
    "MBartTokenizer": (_PIECES, {"src_lang": "zh_CN"}),
    "MBart50Tokenizer": (_PIECES, {}),
    "ErnieLayoutTokenizer": (("vocab.txt", *_PIECES), {"do_tokenize_postprocess": True}),
    "RoFormerTokenizer": (("vocab.txt",), {"use_jieba": True}),
    "LukeTokenizer": (("vocab.json", "entities.json", "merges.txt"), {}),
    "CLIPTokenizer": (("clip.json", "clip.txt"), {}),
    "XLMTokenizer": (("xlm.json", "xlm.txt"), {"lang2id": {"en": 0, "zh": 1}, "id2lang": {0: "en", 1: "zh"}}),
}
"""The tokenizers with their files and arguments."""
CALLS: dict[str, tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]] = {
    "T5Tokenizer": ((("hello <extra_id_1> a",), {"max_seq_len": 4}),),
    "RoFormerTokenizer": ((("国足客场取胜",), {}),),
    "LukeTokenizer": (
        (("hello b a",), {"entity_spans": [(0, 5)], "max_mention_length": 4}),
        (("hello b a",), {"entity_spans": [(6, 7)], "entities": ["hello"], "max_mention_length": 2}),
        (
            ("hello b", "a hello"),
            {"entity_spans": [(0, 5)], "entity_spans_pair": [(2, 7)], "max_mention_length": 2},
        ),
        ((["hello b", "b"],), {"entity_spans": [[(0, 5)], [(0, 1)]], "return_dict": False}),
    ),
    "XLMTokenizer": (
        (("国足，客场",), {"lang": "zh"}),
        (("hello b's",), {"bypass_tokenizer": True}),
    ),
}
"""More calls of a tokenizer."""


def write_vocabularies(folder: Path) -> None:
    """Write the files of all tokenizers."""
    (folder / "vocab.txt").write_text("\n".join((*WORDS, *LONG_WORDS)) + "\n", "utf-8")
    (folder / "unimo.txt").write_text("".join(f"{w}\t{i}\n" for i, w in enumerate(WORDS)), "utf-8")
    (folder / "entities.json").write_text(json.dumps({"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "hello": 3}))
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = [*map(chr, plain), *(chr(256 + place) for place in range(256 - len(plain)))]
    _write_pairs(folder, "vocab.json", "merges.txt", [*_SPECIAL, *alphabet, *map("".join, _MERGES)], _MERGES)
    ends = [f"{char}</w>" for char in alphabet]
    tokens = [*alphabet, *ends, *map("".join, _WORD_MERGES), "<|startoftext|>", "<|endoftext|>"]
    _write_pairs(folder, "clip.json", "clip.txt", tokens, _WORD_MERGES)
    roles = ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{number}>" for number in range(10))]
    letters = [piece for char in "helosab国足客场,5" for piece in (char, f"{char}</w>")]
    _write_pairs(
        folder, "xlm.json", "xlm.txt", [*roles, *letters, "hello</w>", "hell"], _WORD_MERGES, head=""
    )
    write_pieces(folder / "pieces.model")


def _write_pairs(
    folder: Path, vocab: str, merges: str, tokens: list[str], pairs: Any, head: str = "#version: 0.2\n"
) -> None:
    (folder / vocab).write_text(json.dumps({token: number for number, token in enumerate(tokens)}), "utf-8")
    (folder / merges).write_text(head + "\n".join(map(" ".join, pairs)) + "\n", "utf-8")


def write_pieces(path: Path) -> None:
    """Write a SentencePiece model of PIECES; the first pieces have the best scores."""
    from sentencepiece import sentencepiece_model_pb2 as model

    kinds = model.ModelProto.SentencePiece.Type
    proto = model.ModelProto()
    special = (
        ("<unk>", kinds.UNKNOWN),
        ("<s>", kinds.CONTROL),
        ("</s>", kinds.CONTROL),
        ("<pad>", kinds.CONTROL),
    )
    normal = ((piece, kinds.NORMAL) for piece in dict.fromkeys(PIECES))
    for number, (piece, kind) in enumerate((*special, *normal)):
        proto.pieces.add(piece=piece, score=-float(number), type=kind)
    proto.trainer_spec.model_type = model.TrainerSpec.ModelType.UNIGRAM
    proto.normalizer_spec.name = "identity"
    path.write_bytes(proto.SerializeToString())


def answers(transformers: Any, folder: Path) -> dict[str, list[Any]]:
    """Return the answers of the tokenizers of a module, by their names."""
    collected = {}
    for name, (files, arguments) in TOKENIZERS.items():
        tokenizer = getattr(transformers, name)(*(str(folder / file) for file in files), **arguments)
        more = [_answer(tokenizer, *args, **kwargs) for args, kwargs in CALLS.get(name, ())]
        collected[name] = json.loads(json.dumps(_collect_answers(tokenizer) + more))
    return collected


def _collect_answers(tokenizer: Any) -> list[Any]:
    answered: list[Any] = [
        tokenizer.vocab_size,
        tokenizer.pad_token_id,
        tokenizer.num_special_tokens_to_add(True),
    ]
    for text in TEXTS:
        short = {"max_length": 5, "truncation": True, "padding": "max_length"}
        masks = {"return_attention_mask": True, "return_special_tokens_mask": True}
        tokens = tokenizer.tokenize(text)
        answered += [
            tokens,
            tokenizer.convert_tokens_to_string(tokens),
            tokenizer.decode(tokenizer(text)["input_ids"]),
        ]
        answered += [
            _answer(tokenizer, text, **short, **masks),
            _answer(tokenizer, text, return_offsets_mapping=True),
            _answer(tokenizer, text, "hello b"),
        ]
    answered.append(_answer(tokenizer, list(TEXTS), padding=True))
    return answered


def _answer(tokenizer: Any, *args: Any, **kwargs: Any) -> Any:
    """The answer to a call, or its error: ERNIE-Layout finds no place for some pieces."""
    try:
        answer = tokenizer(*args, **kwargs)
    except ValueError as exc:
        return f"error {type(exc).__name__}"
    return [dict(row) for row in answer] if isinstance(answer, list) else dict(answer)


Segments = dict[str, dict[str, Any]]
_MOSES = {"MosesPunctNormalizer": "normalize", "MosesTokenizer": "tokenize"}


def replay_segments(segments: Segments) -> None:
    """Put modules in the place of `jieba` and `sacremoses` that answer as these packages did."""
    sys.modules |= {"jieba": ModuleType("jieba"), "sacremoses": ModuleType("sacremoses")}
    _replace_segmenters(lambda key, text: segments[key][text])


def _record_segments() -> Segments:
    """Return a table that the answers of `jieba` and `sacremoses` fill from here on."""
    segments: Segments = {}
    jieba, moses = importlib.import_module("jieba"), importlib.import_module("sacremoses")
    cut, classes = jieba.cut, {kind: getattr(moses, kind) for kind in _MOSES}

    def answer(key: str, text: str) -> Any:
        name, argument = key.split()
        if name == "jieba":
            result = list(cut(text, HMM=argument == "True"))
        elif name == "MosesTokenizer":
            result = classes[name](lang=argument).tokenize(text, return_str=False, escape=False)
        else:
            result = classes[name](lang=argument).normalize(text)
        segments.setdefault(key, {})[text] = result
        return result

    _replace_segmenters(answer)
    return segments


def _replace_segmenters(answer: Callable[[str, str], Any]) -> None:
    jieba, moses = sys.modules["jieba"], sys.modules["sacremoses"]
    jieba.cut = lambda text, HMM=True: answer(f"jieba {HMM}", text)  # type: ignore[attr-defined]
    for kind in _MOSES:
        setattr(moses, kind, partial(_create_segmenter, answer, kind))


def _create_segmenter(answer: Callable[[str, str], Any], kind: str, lang: str) -> SimpleNamespace:
    return SimpleNamespace(**{_MOSES[kind]: lambda text, **options: answer(f"{kind} {lang}", text)})


def record(path: Path) -> None:
    """Write the answers of the PaddleNLP of this environment."""
    segments = _record_segments()
    with tempfile.TemporaryDirectory() as folder:
        write_vocabularies(Path(folder))
        collected = answers(importlib.import_module("paddlenlp.transformers"), Path(folder))
    rows = {**collected, "segments": [segments]}
    lines = (
        f" {json.dumps(name)}: [\n"
        + ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in values)
        + "\n ]"
        for name, values in rows.items()
    )
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
