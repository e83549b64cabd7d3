"""PaddleNLP's C++ tokenizer packages: `faster_tokenizers`, `faster_tokenizer`, `fast_tokenizer`.

They are reimplemented on the `tokenizers` package, whose algorithms they were a translation of. Here is the
part that services called: `ErnieFasterTokenizer(vocab).encode(text).ids`, and
`models.WordPiece.read_file(path)`.
"""

from __future__ import annotations

from typing import Any

from .ernie_tokenizer import BertFastTokenizer, Encoding, ErnieFastTokenizer

ErnieFasterTokenizer = ErnieFastTokenizer  # as it was called until 2022
BertFasterTokenizer = BertFastTokenizer

__all__ = [
    "BertFastTokenizer",
    "BertFasterTokenizer",
    "Encoding",
    "ErnieFastTokenizer",
    "ErnieFasterTokenizer",
]


def __getattr__(name: str) -> Any:
    from paddlenlp_shims.places import sentence

    raise AttributeError(sentence(f"{__name__}.{name}"))
