"""Computes where in the text each token stands (offset mapping), as PaddleNLP 2.8 does.

Its tokenizers do not record positions while they split. So each token is searched in the normalized text,
after the token before it; a token that is not found, such as [UNK], fills the gap between its neighbours.
Source: `PretrainedTokenizer._get_bert_like_offset_mapping` and `get_offset_mapping` of paddlenlp 2.8.1
(Apache-2.0).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence

Span = tuple[int, int]


def spans_of_tokens(
    normalized: str,
    origin: Sequence[int],
    tokens: Sequence[str],
    unknown: Callable[[int], bool] = lambda place: False,
) -> list[Span]:
    """Return start and end of each token in the original text, in characters.

    normalized: the text in which tokens are searched. origin: position in the original text of each character
    of `normalized`. unknown: whether a token that is not found counts as a single character, by the token's
    index. As in PaddleNLP, raises IndexError if `origin` is too short, and ValueError for a token with a
    sigma that is not found.
    """
    places = _places(normalized, tokens, unknown)
    spans = []
    for index, (start, end) in enumerate(places):
        if start == -1:
            start = 0 if index == 0 else places[index - 1][1]
            end = len(origin) if index == len(places) - 1 else places[index + 1][0]
        spans.append((origin[start], origin[end - 1] + 1))
    return spans


def _places(text: str, tokens: Sequence[str], unknown: Callable[[int], bool]) -> list[Span]:
    """Return start and end of each token in the normalized text.

    The start is -1 for tokens that are not found.
    """
    alike = text.replace("ς", "σ")  # the two small sigmas, of which lower() makes the one or the other
    places: list[Span] = []
    offset = 0
    for index, token in enumerate(tokens):
        if "σ" in token or "ς" in token:
            start = alike.index(token.replace("ς", "σ"), offset)
        else:
            start = text.find(token, offset)
            if start == -1 and unknown(index):
                start, token = offset, " "
        end = start + len(token)
        places.append((start, end))
        if start != -1:
            offset = end
    return places


def normalized_character(character: str) -> str:
    """Normalize a character as SentencePiece models do: full-width forms, circled numbers, Roman numerals."""
    code = ord(character)
    if any(start <= code <= end for start, end in _OTHER_FORMS):
        return unicodedata.normalize("NFKC", character)
    if any(start <= code <= end for start, end in _NUMBERS):
        return f" {int(unicodedata.numeric(character))} "
    return "凉" if code == 0xF979 else character


_OTHER_FORMS = ((0xFF00, 0xFFEF), (0xFE50, 0xFE6B), (0x3358, 0x33FF), (0x249C, 0x24E9), (0x3200, 0x32FF))
_NUMBERS = ((0x2460, 0x249B), (0x24EA, 0x24FF), (0x2776, 0x2793), (0x2160, 0x217F))
