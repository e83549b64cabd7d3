"""Texts that tokenizers get wrong: scripts, signs of several characters, spaces of all kinds, odd marks."""

from __future__ import annotations

import unicodedata

PILED = "a" + "\u0301" * 12 + "b"
"""Of a sign the library `tokenizers` composes six bytes at most, where SentencePiece composes all."""
HARD_TEXTS = (
    "国足客场两球取胜，提前一轮出线",
    "龘靐齉爩𠮷𪚥 龍龟",
    "ＡＢＣ１２３，．！　全角　空格",
    "👍🏽 👨\u200d👩\u200d👧\u200d👦 🇨🇳 ❤\ufe0f 1\ufe0f\u20e3",
    "café Beyoncé naïve Ångström",
    unicodedata.normalize("NFD", "café Beyoncé naïve Ångström Việt Nam 한국어"),
    "한국어 日本語のテキスト カタカナ ｶﾀｶﾅ ㌔ ①②③ ㍻",
    "שלום עולם مرحبا بالعالم हिन्दी ไทย ქართული",
    "ﬁ ﬂ ﬀ ĳ ŉ ß ẞ İ ı ſ Ⅷ ℃ ™ ½",
    "𝒜𝓁𝓅𝒽𝒶 𝟚𝟘𝟚𝟜 ⓐⓑⓒ",
    "a\tb\nc\r\nd\u00a0e\u3000f\u2003g\u2028h\u0085i",
    "  spaces   in  a row  ",
    "soft\u00adhyphen zero\u200bwidth\u200cjoin\u200der \ufeffbom",
    "a\u0000b\u0007c\u001bd\ufffde",
    "1,000,000.50 3,4, 2024年11月23日 12:30 +86-10-1234",
    "``quoted'' 'it''s' “smart” ‘quotes’ — … ·",
    "http://example.com/a?b=c&d=%E4%BD%A0 user@example.com #tag @name",
    "C++ c# F=ma x² ≤ ≥ ≠ → ∞ √ ∑",
    "UPPER lower MiXeD ПРИВЕТ привет ΑΒΓ αβγς",
    "don't can't we're o'clock rock'n'roll",
    "w" * 150,
    "国" * 30,
    PILED,
    "_under_score_ ▁metaspace▁ ##hash ##ing",
    "!!!???...;;;:::",
    "\U000e0001tag\U000e007f 𓀀𓂀 𐍈",
    "x",
    "。",
)
