"""Writes small vocabularies, and prints the answers of PaddleNLP's tokenizers to texts.

`answers` needs no other module of this project: the fixture tests/fixtures/paddlenlp_tokens.json was recorded
with it and PaddleNLP 2.8.1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WORDS = (
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"国足客场两球取胜的好不",
    "℃", "##℃", "5", "hello", "##s", ",", "，", "a", "b", "##c",
)  # fmt: skip
TEXTS = ("国足 hellos, a[MASK]B c", "hello hello a <mask> b", "ab  hello's 5℃", " hello</s>x")
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>")
_MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello"), ("Ġ", "a"))


def write_vocabularies(folder: Path) -> None:
    """Write vocab.txt and unimo.txt of words, vocab.json and merges.txt of byte pairs."""
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", "utf-8")
    (folder / "unimo.txt").write_text("".join(f"{w}\t{i}\n" for i, w in enumerate(WORDS)), "utf-8")
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [chr(256 + place) for place in range(256 - len(plain))]
    tokens = [*_SPECIAL, *map(chr, plain), *moved, *map("".join, _MERGES)]
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}), "utf-8")
    merges = "\n".join(map(" ".join, _MERGES))
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", "utf-8")


def answers(transformers: Any, folder: Path) -> dict[str, list[Any]]:
    """Return the answers of the tokenizers of a module, by their names."""
    words, pairs = [str(folder / "vocab.txt")], [str(folder / "vocab.json"), str(folder / "merges.txt")]
    files = {
        "BartTokenizer": pairs,
        "ErnieDocTokenizer": words,
        "GPTTokenizer": pairs,
        "UNIMOTokenizer": [str(folder / "unimo.txt")],
    }
    return {name: _collect_answers(getattr(transformers, name)(*paths)) for name, paths in files.items()}


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
            dict(tokenizer(text, **short, **masks)),
            dict(tokenizer(text, return_offsets_mapping=True)),
        ]
        answered += [dict(tokenizer(text, "hello b"))]
    answered += [dict(tokenizer(list(TEXTS), padding=True))]
    return json.loads(json.dumps(answered))  # type: ignore[no-any-return]
