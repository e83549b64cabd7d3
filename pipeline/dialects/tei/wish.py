"""What a request over TEI's API tells the worker of its answer."""

from __future__ import annotations

from typing import NamedTuple

EMBED, SIMILARITY, RERANK, PREDICT = "tei.embed", "tei.similarity", "tei.rerank", "tei.predict"
"""The forms of an answer, by the paths that they are for."""


class TeiWish(NamedTuple):
    """many: the answer is a list with an element for each text, not the only one itself. texts: the texts in
    JSON, where they are returned with their ranks; empty where they are not."""

    many: bool = True
    texts: bytes = b""
